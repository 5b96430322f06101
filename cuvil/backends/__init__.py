"""From kernel IR to code that runs."""
