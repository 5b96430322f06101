"""The "cuvil" logger: CUVIL_LOG sends its messages to standard error; without it the application decides."""

from __future__ import annotations

import logging

from cuvil.support import config

LOGGER_NAME = "cuvil"


def configure_logging() -> None:
    """Applies CUVIL_LOG and warns about CUVIL_* variables that mean nothing. Further calls change the level only.

    Raises ArgumentError for a level that does not exist.
    """
    logger = logging.getLogger(LOGGER_NAME)
    level = config.log_level()
    if level is not None:
        logger.setLevel(level)
        if not logger.handlers:
            handler = logging.StreamHandler()
            handler.setFormatter(logging.Formatter("%(name)s: %(levelname)s: %(message)s"))
            logger.addHandler(handler)
            logger.propagate = False  # an application with a root handler would print each message twice
    for sentence in config.unknown_variables():
        logger.warning("%s", sentence)
