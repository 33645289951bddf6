"""Benchmarks that must not rot until somebody has the machine for them."""


def pytest_configure(config):
    config.addinivalue_line("markers", "quick: part of `tests/run.sh quick`")
    config.addinivalue_line("markers", "long: only with `tests/run.sh --long`")
