"""Models whose family needs a package that isn't installed: in an interpreter whose site-packages
truly lack it, each is refused in one line that names the package and the command that installs
it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sdgbias import store
from tests.builders import families
from tests.builders.commands import environment

#: One process for two folders, which would otherwise spend most of its time importing.
RUN = """
import sys
from sdgbias.cli import main
benchmark, results, *folders = sys.argv[1:]
for folder in folders:
    sys.argv = ["sdgbias", "evaluate", folder, "--benchmark", benchmark, "--results", results]
    try:
        main()
    except SystemExit as done:
        print("exit", done.code, file=sys.stderr)
"""


def site_without(folder: Path, packages: tuple[str, ...]) -> Path:
    """Links to all that is installed here but for these packages and their metadata."""
    folder.mkdir()
    for kind in ("purelib", "platlib"):
        for path in Path(sysconfig.get_path(kind)).iterdir():
            link = folder / path.name
            if not path.name.lower().startswith(packages) and not link.exists():
                link.symlink_to(path)
    return folder


def rewrite(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    found = json.loads(path.read_text(encoding="utf-8"))
    change(found)
    path.write_text(json.dumps(found), encoding="utf-8")


def smolvlm(folder: Path) -> Path:
    """SmolVLM's own processor can only be written where num2words is installed: the files of its
    elder brother under its names."""
    families.write(folder, "idefics3")
    for name in ("processor_config.json", "preprocessor_config.json", "tokenizer_config.json"):
        rewrite(folder / name, lambda found: found.update(processor_class="SmolVLMProcessor"))
    rewrite(folder / "config.json", lambda found: found.update(model_type="smolvlm"))
    return folder


@pytest.mark.skipif(sys.platform != "linux", reason="links into site-packages")
def test_a_missing_package_is_named_with_the_command_that_installs_it(
    tiny_benchmark: Path, tmp_path: Path
) -> None:
    (tmp_path / "registry" / "models").mkdir(parents=True)
    folders = [families.write(tmp_path / "qwen", "qwen2_vl"), smolvlm(tmp_path / "smolvlm")]
    site = site_without(tmp_path / "site", ("torchvision",))
    variables = environment(tmp_path)
    variables["PYTHONPATH"] = os.pathsep.join([variables["PYTHONPATH"], str(site)])
    results = tmp_path / "r.duckdb"
    done = subprocess.run(
        [sys.executable, "-S", "-c", RUN, str(tiny_benchmark), str(results), *map(str, folders)],
        cwd=tmp_path,
        env=variables,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert "Traceback" not in done.stderr, done.stderr
    lines = done.stderr.splitlines()
    assert [line for line in lines if line.startswith("exit ")] == ["exit 5"] * 2, done.stderr
    errors = [line for line in lines if line.startswith("error: ")]
    assert len(errors) == 2
    for line in errors:
        assert "needs the package torchvision" in line, line
        assert line.endswith("pip install --constraint constraints.txt --no-deps torchvision")
    assert store.query(results, "SELECT count(*) AS n FROM runs")["n"].tolist() == [0]
