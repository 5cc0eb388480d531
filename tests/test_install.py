"""scripts/install.py: uv gets its packages from where pip is set to get them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from scripts import install


def pip_config(folder: Path, text: str) -> list[str]:
    """What pip itself lists for a configuration file of this content."""
    (folder / "pip.conf").write_text(text)
    clean = {k: v for k, v in os.environ.items() if not k.startswith("PIP_")}
    done = subprocess.run(
        [sys.executable, "-m", "pip", "config", "list"],
        env={**clean, "PIP_CONFIG_FILE": str(folder / "pip.conf"), "PIP_TIMEOUT": "77"},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.splitlines()


def test_the_settings_of_pip_become_those_of_uv(tmp_path: Path) -> None:
    lines = pip_config(
        tmp_path,
        "[global]\nindex-url = https://packages.example/simple\n"
        "extra-index-url =\n    https://a.example/simple\n    https://b.example/simple\n"
        "[install]\nindex-url = https://install.example/simple\n",
    )
    settings = install.uv_settings(lines, {})
    assert settings["UV_DEFAULT_INDEX"] == "https://install.example/simple"  # the narrower section
    assert settings["UV_INDEX"] == "https://a.example/simple https://b.example/simple"
    assert settings["UV_HTTP_TIMEOUT"] == "77"
    assert settings["UV_INDEX_STRATEGY"] == "unsafe-best-match"
    set_for_uv = {"UV_DEFAULT_INDEX": "https://mine.example/simple"}
    assert "UV_DEFAULT_INDEX" not in install.uv_settings(lines, set_for_uv)


@pytest.mark.slow
def test_without_uv_pip_installs_and_its_exit_code_counts(tmp_path: Path) -> None:
    """An environment that can get no package at all: uv can't be had, pip's error is shown."""
    done = subprocess.run(
        [sys.executable, install.__file__, "--no-deps", "no-such-package-of-sdgbias"],
        env={**os.environ, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(tmp_path), "UV_OFFLINE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "installing with pip" in done.stdout
    assert "no-such-package-of-sdgbias" in done.stderr
