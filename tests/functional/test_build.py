"""Raw folder to benchmark folder as a person does it, with good data, real data and bad data."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path

import pandas as pd
import pytest

from tests.builders.commands import ok, refused, sdgbias


@pytest.fixture(scope="module")
def raw(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("raw") / "raw"
    ok("sample", "--out", folder, "--clusters", 40, "--seed", 9, "--countries", "NM,KE,IA,BF")
    return folder


def copy(raw: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(raw, tmp_path / "raw"))


def build(raw: Path, out: Path, *more: object, alone: bool = False) -> dict:  # type: ignore[type-arg]
    command = ("build", "--raw", raw, "--indicators", raw / "indicators", "--out", out, *more)
    ok(*command, alone=alone)
    return dict(json.loads((out / "benchmark.json").read_text()))


@pytest.fixture(scope="module")
def built(raw: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("built") / "b"
    build(raw, out)
    return out


@pytest.mark.long
def test_same_inputs_same_benchmark(raw: Path, built: Path, tmp_path: Path) -> None:
    """In two processes, which have two seeds of Python's hashes."""
    two = build(raw, tmp_path / "b", alone=True)
    assert json.loads((built / "benchmark.json").read_text()) == two
    for path in sorted(built.glob("*.parquet")):
        twin = tmp_path / "b" / path.name
        assert (
            hashlib.sha256(path.read_bytes()).digest() == hashlib.sha256(twin.read_bytes()).digest()
        ), path.name


@pytest.mark.long
def test_review_and_build_again(raw: Path, tmp_path: Path) -> None:
    """Two reviewers reject three questions: the next build leaves them out, draws others, and says
    so in card and quarantine."""
    out, sheets, sizes = tmp_path / "b", tmp_path / "review", ("--mcq", 60, "--regression", 20)
    command = ("build", "--raw", raw, "--indicators", raw / "indicators", "--out", out, *sizes)
    ok(*command)
    ok(
        "review",
        "sample",
        "--benchmark",
        out,
        "--out",
        sheets,
        "--share",
        0.3,
        "--reviewers",
        "anna,ben",
    )
    for name in ("anna", "ben"):
        table = pd.read_csv(sheets / f"{name}.csv", dtype=str, keep_default_na=False)
        table["verdict"] = "accept"
        table.loc[table.index[:3], "verdict"] = "reject"
        table.loc[table.index[:3], "reason"] = "wrong-gold"
        table.to_csv(sheets / f"{name}.csv", index=False)
    said = ok(
        "review",
        "import",
        sheets / "anna.csv",
        sheets / "ben.csv",
        "--benchmark",
        out,
        "--out",
        tmp_path / "reviews.parquet",
    )
    assert "kappa" in said.lower()
    verdicts = pd.read_parquet(tmp_path / "reviews.parquet")
    rejected = verdicts[verdicts["verdict"].str.startswith("reject")]
    assert len(rejected) == 3
    card = build(raw, out, *sizes, "--review", tmp_path / "reviews.parquet")
    assert (card["counts"]["items_mcq"], card["counts"]["items_regression"]) == (60, 20)
    assert card["quarantined"]["rejected-in-review"] == 3
    for task in ("mcq", "regression"):
        kept = set(pd.read_parquet(out / f"items_{task}.parquet")["item_id"])
        assert not kept & set(rejected.loc[rejected["task"] == task, "item_id"])
    assert "kappa" in (out / "README.md").read_text().lower()


@pytest.mark.parametrize(
    ("arguments", "code", "word"),
    [
        (("sample", "--out", "x", "--countries", "XX"), 2, "valid"),
        (("build", "--raw", "nowhere", "--out", "x"), 3, "nowhere"),
        (("build", "--stage", "everything", "--out", "x"), 2, "clusters"),
        (
            ("cade", "apply", "--pred-dir", "p", "--task", "essay", "--level", "1", "--out", "o"),
            2,
            "give --params",
        ),
        (
            ("cade", "search", "--pred-dir", "p", "--task", "essay", "--level", "1", "--out", "o"),
            2,
            "valid: mcq, regression",
        ),
        (("results", "--results", "nowhere.duckdb"), 7, "nowhere.duckdb"),
    ],
)
def test_one_clear_line(arguments: tuple[str, ...], code: int, word: str, tmp_path: Path) -> None:
    assert word in refused(code, *arguments, cwd=tmp_path)


def test_a_path_that_climbs_out_of_the_raw_folder(raw: Path, tmp_path: Path) -> None:
    raw = copy(raw, tmp_path)
    table = next(raw.glob("mapillary/metadata/*.csv"))
    frame = pd.read_csv(table, dtype=str)
    (tmp_path / "secret.jpeg").write_bytes(b"")
    frame["path"] = "../../../secret.jpeg"
    frame.to_csv(table, index=False)
    done = sdgbias(
        "build", "--raw", raw, "--indicators", raw / "indicators", "--out", tmp_path / "b"
    )
    assert "Traceback" not in done.stderr
    assert done.returncode == 3
    assert "climbs out" in done.stderr


@pytest.mark.long
def test_real_bytes(shared: Path, tmp_path: Path) -> None:
    """Real labels, real Landsat pixels, real street photos, real series: a cluster without a tile
    leaves with its reason, one without a photo keeps its tile."""
    out = tmp_path / "b"
    said = ok(
        "build", "--raw", shared / "realpack", "--indicators", shared / "indicators", "--out", out
    )
    assert "missing-tile" in said and "missing-photo" not in said
    quarantine = pd.read_parquet(out / "quarantine.parquet")
    images = pd.read_parquet(out / "images.parquet")
    lost = set(quarantine.loc[quarantine["rule"] == "missing-tile", "key"])
    assert len(images) + len(lost) == 30
    assert set(images["modalities"]) == {"photo, tile, nightlights", "tile, nightlights"}
    ok(
        "evaluate",
        "tiny-llava",
        "--benchmark",
        out,
        "--results",
        tmp_path / "r.duckdb",
        "--draws",
        500,
    )
    assert "accuracy" in ok("results", "--results", tmp_path / "r.duckdb")
