"""How pip builds Firn: by meson-python, but no editable installs, whose start-up line would be
missing (meson-python installs none of the files beside the package then)."""

from mesonpy import (  # noqa: F401
    build_sdist,
    build_wheel,
    get_requires_for_build_sdist,
    get_requires_for_build_wheel,
)

_REFUSED = ("firn: no editable installs: pip install . (without -e), or, to work on Firn itself, "
            "`export $(python3 pytorch_plugin/dev_site.py BUILD)`, which takes the package from "
            "the sources and the libraries from a build folder")


def get_requires_for_build_editable(config_settings=None):
    raise SystemExit(_REFUSED)


def build_editable(wheel_directory, config_settings=None, metadata_directory=None):
    raise SystemExit(_REFUSED)
