"""Environment variables: what each accepts, what it refuses and how it says so."""

from __future__ import annotations

import ast
import logging
import os
import re
import runpy
from pathlib import Path

import pytest

from cuvil.support import config, logs
from cuvil.support.errors import ArgumentError


@pytest.fixture(autouse=True)
def bare_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith(("CUVIL_", "XDG_")):
            monkeypatch.delenv(name)


def test_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/ada")
    assert config.c_compiler() is None
    assert config.num_threads() == config.available_cpus() >= 1
    assert config.cache_dir() == Path("/home/ada/.cache/cuvil")
    assert config.cache_limit_bytes() == 2 << 30
    assert config.compile_timeout() == 300.0
    assert config.dump_stages() == frozenset()
    assert config.dump_dir() is None
    assert config.log_level() is None


def test_values_are_read_at_each_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUVIL_NUM_THREADS", " 3 ")
    assert config.num_threads() == 3
    monkeypatch.setenv("CUVIL_NUM_THREADS", "4")
    assert config.num_threads() == 4
    monkeypatch.setenv("CUVIL_NUM_THREADS", "")
    assert config.num_threads() == config.available_cpus()


def test_accepted_values(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUVIL_CC", "ccache '/opt/my gcc/bin/gcc' -m64")
    monkeypatch.setenv("CUVIL_CACHE_SIZE", "500M")
    monkeypatch.setenv("CUVIL_COMPILE_TIMEOUT", "1.5")
    monkeypatch.setenv("CUVIL_MAX_VARIANTS", "7")
    assert config.max_variants() == 7
    monkeypatch.setenv("CUVIL_DUMP", "fused, source")
    monkeypatch.setenv("CUVIL_LOG", "DEBUG")
    assert config.c_compiler() == ("ccache", "/opt/my gcc/bin/gcc", "-m64")
    assert config.cache_limit_bytes() == 500 << 20
    assert config.compile_timeout() == 1.5
    assert config.dump_stages() == {"fused", "source"}
    assert config.log_level() == logging.DEBUG
    monkeypatch.setenv("CUVIL_DUMP", "all")
    assert config.dump_stages() == set(config.DUMP_STAGES)


@pytest.mark.parametrize(
    ("name", "value", "read"),
    [
        ("CUVIL_CC", "'gcc", config.c_compiler),
        ("CUVIL_NUM_THREADS", "0", config.num_threads),
        ("CUVIL_NUM_THREADS", "-1", config.num_threads),
        ("CUVIL_NUM_THREADS", "two", config.num_threads),
        ("CUVIL_NUM_THREADS", "²", config.num_threads),
        ("CUVIL_NUM_THREADS", "99999", config.num_threads),
        ("CUVIL_CACHE_SIZE", "much", config.cache_limit_bytes),
        ("CUVIL_CACHE_SIZE", "-1", config.cache_limit_bytes),
        ("CUVIL_COMPILE_TIMEOUT", "0", config.compile_timeout),
        ("CUVIL_MAX_VARIANTS", "0", config.max_variants),
        ("CUVIL_MAX_VARIANTS", "many", config.max_variants),
        ("CUVIL_COMPILE_TIMEOUT", "nan", config.compile_timeout),
        ("CUVIL_COMPILE_TIMEOUT", "inf", config.compile_timeout),
        ("CUVIL_COMPILE_TIMEOUT", "soon", config.compile_timeout),
        ("CUVIL_DUMP", "tensor,kernels", config.dump_stages),
        ("CUVIL_LOG", "loud", config.log_level),
        ("CUVIL_CACHE_DIR", "~nobody-of-this-name/x", config.cache_dir),
    ],
)
def test_refused_values_are_named(monkeypatch: pytest.MonkeyPatch, name: str, value: str, read: object) -> None:
    monkeypatch.setenv(name, value)
    assert callable(read)
    with pytest.raises(ArgumentError, match=name) as caught:
        read()
    assert value.split(",")[-1] in str(caught.value)


def test_cache_dir_follows_the_xdg_specification(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", "/home/ada")
    monkeypatch.setenv("XDG_CACHE_HOME", "/scratch")
    assert config.cache_dir() == Path("/scratch/cuvil")
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert config.cache_dir() == Path("/home/ada/.cache/cuvil")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CUVIL_CACHE_DIR", "here")
    assert config.cache_dir() == tmp_path / "here"
    monkeypatch.setenv("CUVIL_CACHE_DIR", "~/there")
    assert config.cache_dir() == Path("/home/ada/there")


def test_threads_follow_the_affinity_mask_and_the_quota(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 3, 5, 7}, raising=False)
    monkeypatch.setattr(config, "cgroup_cpu_quota", lambda: None)
    assert config.available_cpus() == 4
    for quota, cpus in [(2.0, 2), (1.5, 2), (0.25, 1), (64.0, 4)]:
        monkeypatch.setattr(config, "cgroup_cpu_quota", lambda quota=quota: quota)
        assert config.available_cpus() == cpus


def _lay(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def test_cgroup_v2_quota_is_the_smallest_on_the_way_up(tmp_path: Path) -> None:
    root = _lay(
        tmp_path,
        {
            "proc/self/cgroup": "0::/pod/app\n",
            "sys/fs/cgroup/pod/app/cpu.max": "max 100000\n",
            "sys/fs/cgroup/pod/cpu.max": "150000 100000\n",
        },
    )
    assert config.cgroup_cpu_quota(root) == 1.5


def test_cgroup_v1_quota(tmp_path: Path) -> None:
    files = {
        "proc/self/cgroup": "5:memory:/docker/x\n4:cpu,cpuacct:/docker/x\n",
        "sys/fs/cgroup/cpu/docker/x/cpu.cfs_quota_us": "-1\n",
        "sys/fs/cgroup/cpu/docker/x/cpu.cfs_period_us": "100000\n",
        "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "300000\n",
        "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
    }
    assert config.cgroup_cpu_quota(_lay(tmp_path, files)) == 3.0


@pytest.mark.parametrize("text", ["max 100000\n", "", "garbage", "100000 0\n", "1 2 3\n"])
def test_a_quota_that_says_nothing_limits_nothing(tmp_path: Path, text: str) -> None:
    root = _lay(tmp_path, {"proc/self/cgroup": "0::/\nodd line\n", "sys/fs/cgroup/cpu.max": text})
    assert config.cgroup_cpu_quota(root) is None


def test_no_cgroups_no_quota(tmp_path: Path) -> None:
    assert config.cgroup_cpu_quota(tmp_path) is None


def test_the_list_of_variables_is_the_set_of_those_that_are_read() -> None:
    """The list feeds the documentation and the warning about unknown names, so it must be complete."""
    package = Path(config.__file__).parents[1]
    literals = [
        str(node.value)
        for path in [*package.rglob("*.py"), Path(__file__).parents[1] / "conftest.py"]
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and re.fullmatch(r"CUVIL_[A-Z_]+", str(node.value))
    ]
    listed = [variable.name for variable in config.VARIABLES]
    assert set(literals) == set(listed)
    assert [name for name in listed if literals.count(name) < 2] == [], "listed but never read"


def test_logging_follows_the_environment(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    logger = logging.getLogger("cuvil")
    monkeypatch.setattr(logger, "handlers", [])
    monkeypatch.setattr(logger, "propagate", True)
    before = logger.level
    monkeypatch.setenv("CUVIL_LOG", "info")
    monkeypatch.setenv("CUVIL_CACH_DIR", "/x")
    try:
        logs.configure_logging()
        logs.configure_logging()
        logging.getLogger("cuvil.some.module").info("seen")
        logging.getLogger("cuvil.some.module").debug("not seen")
    finally:
        logger.setLevel(before)
    printed = capsys.readouterr().err
    assert "cuvil.some.module: INFO: seen\n" in printed
    assert printed.count("INFO: seen") == 1
    assert "not seen" not in printed
    assert "CUVIL_CACH_DIR is set but means nothing; did you mean CUVIL_CACHE_DIR?" in printed


def test_the_page_of_variables_is_up_to_date() -> None:
    docs = Path(__file__).parents[2] / "docs"
    made = runpy.run_path(str(docs / "environment_page.py"))["page"]()
    assert (docs / "environment.md").read_text() == made, "run `make docs-tables` and commit docs/environment.md"
