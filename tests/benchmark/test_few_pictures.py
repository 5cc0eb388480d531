"""Few pictures are drawn by the building process itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from sdgbias.benchmark import build
from sdgbias.raw.images import image_store
from sdgbias.raw.images.image_store import ImageSettings
from sdgbias.raw.synthetic import write_sample


def test_few_pictures_start_no_worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[int] = []
    run = image_store._run
    monkeypatch.setattr(
        image_store, "_run", lambda draw, shards, n: started.append(n) or run(draw, shards, 1)
    )
    monkeypatch.setattr(build.os, "cpu_count", lambda: 4)
    write_sample(tmp_path / "raw", 3, 5)
    build.build_clusters(tmp_path / "raw", tmp_path / "b")
    for few in (4, 3):
        monkeypatch.setattr(build, "FEW_PICTURES", few)
        build.build_images(tmp_path / "raw", tmp_path / "b", ImageSettings())
    assert started == [1, 4]
    build.build_images(tmp_path / "raw", tmp_path / "b", ImageSettings(), 2)
    assert started[-1] == 2, "a number that was asked for is taken"
