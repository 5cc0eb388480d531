"""From a raw folder to a benchmark: bad data is one clear line, or a row in quarantine with its
rule; a review feeds back; killed at any moment, the same command gives the same bytes."""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from sdgbias.benchmark import build, card, quality
from sdgbias.cli import interruption
from sdgbias.progress import Record
from sdgbias.raw.check import check_raw
from sdgbias.raw.images.image_store import ImageSettings
from sdgbias.raw.synthetic import write_sample
from tests.builders.commands import environment, ok, refused

LABELS = "dhs_final_labels.csv"
STAGES = ("clusters", "images", "series", "items", "prompts", "card", "check")
#: Defect of a cluster -> the table and the rule under which it leaves; none: it stays.
DEFECTS = {
    "duplicate": ("clusters", "duplicate-cluster"),
    "wrong-year": ("clusters", "inconsistent-metadata"),
    "iso-code": ("clusters", "unknown-country"),
    "minus-nine": ("labels", "value-out-of-range"),
    "truncated-tile": ("images", "tile-truncated"),
    "channel-last": ("images", "tile-wrong-shape"),
    "all-zero": ("images", "tile-all-zero"),
    "scaled": ("images", "tile-wrong-scale"),
    "corrupt-photo": ("photos", "photo-corrupt"),
    "no-tile": ("images", "missing-tile"),
    "no-photo": ("photos", "photo-missing-file"),
    "span": None,
    "latin-1": None,
    "blank": None,
}


def command(raw: Path, out: Path, more: str = "--mcq 24 --regression 6") -> str:
    return f"build --raw {raw} --indicators {raw / 'indicators'} --out {out} {more}"


def run_stage(stage: str, raw: Path, out: Path) -> None:
    """A stage in this process."""
    steps: dict[str, Callable[[], object]] = {
        "clusters": lambda: build.build_clusters(raw, out),
        # one process: every change of the disk is then seen by the hook below
        "images": lambda: build.build_images(raw, out, ImageSettings(), 1),
        "series": lambda: build.build_series(raw / "indicators", out),
        "items": lambda: build.build_items(out, build.Draw(mcq=24, regression=6)),
        "prompts": lambda: build.build_prompts(out),
        "card": lambda: card.build_card(out),
        "check": lambda: quality.run_gate(out),
    }
    steps[stage]()


@pytest.fixture(scope="module")
def raw(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bad") / "raw"
    ok(f"sample --out {folder} --clusters 24 --seed 11 --countries NM,KE,IA,BF")
    return folder


@dataclass(frozen=True)
class Spoiled:
    """Defect -> its cluster; the folder; the benchmark that was built; what was left out of it."""

    clusters: dict[str, str]
    raw: Path
    benchmark: Path
    quarantine: pd.DataFrame


def labels_of(folder: Path) -> pd.DataFrame:
    return pd.read_csv(folder / LABELS, dtype=str, keep_default_na=False)


@pytest.fixture(scope="module")
def spoiled(raw: Path, tmp_path_factory: pytest.TempPathFactory) -> Spoiled:
    """One raw folder with a defect on a cluster each, built once by the command."""
    folder = Path(shutil.copytree(raw, tmp_path_factory.mktemp("spoiled") / "raw"))
    photos = {path.name for path in folder.glob("mapillary/imagery/*/*")}
    whole = sorted(t.stem for t in folder.glob("dhs_npzs/*/*.npz") if t.stem in photos)
    at = dict(zip(DEFECTS, whole, strict=False))

    rows = labels_of(folder).set_index("DHSID_EA", drop=False)
    year = rows["year"].astype(int)
    rows.loc[at["span"], "year"] = f"{year[at['span']]}-{year[at['span']] + 1}"
    wrong = year[at["wrong-year"]] + 2
    rows.loc[at["wrong-year"], "year"] = f"{wrong}-{wrong + 1}"
    rows.loc[at["iso-code"], "cname"] = "BFA"
    rows.loc[at["latin-1"], "adm1fips"] = "São Tomé"
    rows.loc[at["blank"], ["women_bmi", "asset_index", "urban"]] = " "
    rows.loc[at["minus-nine"], ["asset_index", "women_bmi", "adm1dhs"]] = "-9.0"
    rows = pd.concat([rows, rows.loc[[at["duplicate"]]].assign(women_edu="")])
    rows.to_csv(folder / LABELS, index=False, encoding="latin-1")

    def tile(defect: str) -> Path:
        return folder / "dhs_npzs" / at[defect][:10] / f"{at[defect]}.npz"

    def photos_of(defect: str) -> Path:
        return next(folder.glob(f"mapillary/imagery/*/{at[defect]}"))

    tile("truncated-tile").write_bytes(tile("truncated-tile").read_bytes()[:3000])
    np.savez(tile("channel-last"), x=np.ones((255, 255, 8), dtype=np.float32))
    np.savez(tile("all-zero"), x=np.zeros((8, 255, 255), dtype=np.float32))
    np.savez(tile("scaled"), x=np.full((8, 255, 255), 1200, dtype=np.float32))
    tile("no-tile").unlink()
    for photo in photos_of("corrupt-photo").iterdir():
        photo.write_bytes(photo.read_bytes()[:200])
    shutil.rmtree(photos_of("no-photo"))

    out = folder.parent / "benchmark"
    ok(command(folder, out))
    return Spoiled(at, folder, out, pd.read_parquet(out / "quarantine.parquet"))


def test_a_defect_leaves_under_its_rule(spoiled: Spoiled) -> None:
    lost = spoiled.quarantine
    for defect, rule in DEFECTS.items():
        rows = lost[lost["key"].str.startswith(spoiled.clusters[defect])]
        found = set(zip(rows["table"], rows["rule"], strict=True))
        assert rule is None or rule in found, f"{defect}: {found}"


def test_what_can_be_read_stays(spoiled: Spoiled, raw: Path) -> None:
    at = spoiled.clusters
    clusters = pd.read_parquet(spoiled.benchmark / "clusters.parquet").set_index("cluster_id")
    before = labels_of(raw).set_index("DHSID_EA")
    first_year = int(before.loc[at["span"], "year"])
    assert clusters.loc[at["span"], "year"] == first_year, "the first year of '2016-2017'"
    assert at["latin-1"] in clusters.index
    fuller = float(before.loc[at["duplicate"], "women_edu"])
    assert clusters.loc[at["duplicate"], "women_edu"] == fuller, "the fuller of the two rows"
    missing = clusters.loc[[at["minus-nine"], at["blank"]], ["asset_index", "women_bmi"]]
    assert missing.isna().all(axis=None)
    assert clusters.loc[at["minus-nine"], "adm1dhs"] == 9999
    assert clusters.loc[at["blank"], "urban"] == ""
    assert not (spoiled.quarantine["key"] == at["blank"]).any(), "a blank is missing, not wrong"


def test_nothing_is_lost(spoiled: Spoiled, raw: Path) -> None:
    """Every row of the label file is a cluster or has left with a reason; every cluster has an
    image or a reason."""
    lost = spoiled.quarantine
    clusters, images = (
        pd.read_parquet(spoiled.benchmark / f"{name}.parquet") for name in ("clusters", "images")
    )
    assert len(clusters) + (lost["table"] == "clusters").sum() == len(labels_of(raw)) + 1
    reasons = set(lost.loc[lost["table"] == "images", "key"])
    assert set(clusters["cluster_id"]) == set(images["cluster_id"]) | reasons
    assert (lost[["table", "key", "rule", "detail"]] != "").all(axis=None)


def empty_labels(folder: Path) -> None:
    (folder / LABELS).write_bytes(b"")


def half_an_archive(folder: Path) -> None:
    place = folder / "mapillary" / "imagery" / "KE"
    archive = place.with_suffix(".zip")
    with zipfile.ZipFile(archive, "w") as photos:
        for photo in sorted(place.rglob("*.jpeg")):
            photos.write(photo, photo.relative_to(place.parent))
    shutil.rmtree(place)
    archive.write_bytes(archive.read_bytes()[: archive.stat().st_size // 2])


def unknown_region(folder: Path) -> None:
    regions = "cname,adm1dhs,gdl_region\nNA,1,NAMr101\n"
    (folder / "indicators" / "gdl_regions.csv").write_text(regions, encoding="utf-8")


@pytest.mark.parametrize(
    ("spoil", "stage", "words"),
    [
        (empty_labels, "clusters", (LABELS, "no readable CSV")),
        (half_an_archive, "images", ("KE.zip", "download it again")),
        (unknown_region, "series", ("gdl_regions.csv", "'NA'", "NM")),
    ],
)
def test_what_stops_a_build_is_one_line_and_leaves_nothing_half_made(
    raw: Path,
    tmp_path: Path,
    spoil: Callable[[Path], None],
    stage: str,
    words: tuple[str, ...],
) -> None:
    folder, out = Path(shutil.copytree(raw, tmp_path / "raw")), tmp_path / "benchmark"
    if stage != "clusters":
        run_stage("clusters", folder, out)
    before = {path.name for path in out.rglob("*.parquet")}
    spoil(folder)

    line = refused(3, command(folder, out, f"--stage {stage}"))

    assert all(word in line for word in words), line
    assert {path.name for path in out.rglob("*.parquet")} == before
    states = {f.state for f in check_raw(folder, folder / "indicators").findings}
    assert states & {"broken", "missing"}, "`raw check` says so beforehand"


def test_a_country_missing_from_one_source_keeps_what_the_others_have(
    raw: Path, tmp_path: Path
) -> None:
    """No photos of Kenya: its tiles are shown alone. No series of Namibia: it leaves with a
    reason."""
    folder, out = Path(shutil.copytree(raw, tmp_path / "raw")), tmp_path / "b"
    shutil.rmtree(folder / "mapillary" / "imagery" / "KE")
    (folder / "mapillary" / "metadata" / "KE.csv").unlink()
    for path in folder.glob("indicators/unsd_sdg/*datapoints*.csv"):
        rows = pd.read_csv(path, dtype=str, keep_default_na=False)
        rows[rows["geo_area"] != "516"].to_csv(path, index=False)
    assert "without KE: pictures show the tile alone there" in ok(f"raw check {folder}")
    for stage in STAGES[:4]:
        run_stage(stage, folder, out)
    items = pd.read_parquet(out / "items_mcq.parquet")
    lost = pd.concat(map(pd.read_parquet, sorted((out / "quarantine").glob("*.parquet"))))
    assert {"KE", "BF", "IA"} <= set(items["cname"])
    assert set(items.loc[items["cname"] == "KE", "modalities"]) == {"tile, nightlights"}
    assert not (lost["rule"] == "missing-photo").any()
    gone = lost[(lost["rule"] == "no-indicator-value") & lost["key"].str.contains("NM-")]
    assert (gone["key"] + gone["detail"]).str.contains("uhc_index").any()


def test_what_two_reviewers_reject_is_left_out_of_the_next_build(
    spoiled: Spoiled, tmp_path: Path
) -> None:
    out, sheets, reviews = tmp_path / "b", tmp_path / "review", tmp_path / "reviews.parquet"
    shutil.copytree(spoiled.benchmark, out)
    ok(f"review sample --benchmark {out} --out {sheets} --share 0.5 --reviewers anna,ben")
    for name in ("anna", "ben"):
        table = pd.read_csv(sheets / f"{name}.csv", dtype=str, keep_default_na=False)
        table["verdict"] = ["reject"] * 3 + ["accept"] * (len(table) - 3)
        table["reason"] = ["wrong-gold"] * 3 + [""] * (len(table) - 3)
        table.to_csv(sheets / f"{name}.csv", index=False)
    both = f"{sheets / 'anna.csv'} {sheets / 'ben.csv'}"
    assert "kappa" in ok(f"review import {both} --benchmark {out} --out {reviews}").lower()
    verdicts = pd.read_parquet(reviews)
    rejected = verdicts[verdicts["verdict"].str.startswith("reject")]
    assert len(rejected) == 3

    ok(f"{command(spoiled.raw, out)} --review {reviews}")

    card = json.loads((out / "benchmark.json").read_text())
    assert (card["counts"]["items_mcq"], card["counts"]["items_regression"]) == (24, 6)
    assert card["quarantined"]["rejected-in-review"] == 3
    for task in ("mcq", "regression"):
        kept = set(pd.read_parquet(out / f"items_{task}.parquet")["item_id"])
        assert not kept & set(rejected.loc[rejected["task"] == task, "item_id"])
    assert "kappa" in (out / "README.md").read_text().lower()


# -- kill -9 at moments that matter. A process that dies can leave no trace between two changes of
# the disk: each stage is killed (by itself, from an audit hook) right before it opens a file for
# writing, renames or removes one below the benchmark folder. In processes of their own: what a dead
# one leaves is named after it.

WATCHED = {"open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "shutil.rmtree", "os.truncate"}


def _child(stage: str, raw: str, out: str, kill_at: int, counted: str) -> None:
    """The stage with a hook that counts changes of the disk below ``out`` and dies right before
    number ``kill_at``."""
    changes, inside = 0, str(Path(out)) + os.sep

    def hook(event: str, args: tuple[object, ...]) -> None:
        nonlocal changes
        if event not in WATCHED or not any(
            isinstance(a, str | bytes | os.PathLike) and os.fsdecode(a).startswith(inside)
            for a in args[:2]
        ):
            return
        writes = os.O_WRONLY | os.O_RDWR | os.O_CREAT
        if event == "open" and not (isinstance(args[2], int) and args[2] & writes):
            return
        changes += 1
        if changes == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)
    run_stage(stage, Path(raw), Path(out))
    Path(counted).write_text(str(changes))


def _digests(folder: Path) -> dict[str, str]:
    return {
        p.relative_to(folder).as_posix(): hashlib.sha256(p.read_bytes()).hexdigest()
        for p in sorted(folder.rglob("*"))
        if p.is_file()
    }


Server = multiprocessing.context.ForkServerContext


def _go(server: Server, stage: str, raw: Path, out: Path, kill_at: int) -> tuple[int, int]:
    """(exit code, changes of the disk) of one process."""
    counted = out.parent / "counted"
    counted.unlink(missing_ok=True)
    process = server.Process(target=_child, args=(stage, str(raw), str(out), kill_at, str(counted)))
    process.start()
    process.join(900)
    assert process.exitcode is not None, "the stage hangs"
    return process.exitcode, int(counted.read_text()) if counted.is_file() else 0


def test_killed_at_changes_of_the_disk_a_build_goes_on_to_the_same_bytes(tmp_path: Path) -> None:
    """Each stage is killed before its last change, that of pictures halfway, too. Before its first
    change a stage has done nothing that it could go on with."""
    server = multiprocessing.get_context("forkserver")  # ready at once, a real process each
    # what the stages import, this module's pytest included
    server.set_forkserver_preload([__name__, "great_expectations"])
    raw, whole = tmp_path / "raw", tmp_path / "whole"
    write_sample(raw, 8, seed=11, countries=["NM", "KE"])
    whole.mkdir()
    for stage in STAGES:
        before = Path(shutil.copytree(whole, tmp_path / f"before-{stage}"))
        code, changes = _go(server, stage, raw, whole, 0)
        assert code == 0 and changes > 0, stage
        for moment in {changes, changes // 2 if stage == "images" else changes}:
            out = Path(shutil.copytree(before, tmp_path / f"{stage}-{moment}"))
            code, _ = _go(server, stage, raw, out, moment)
            assert code == -signal.SIGKILL, f"{stage} wasn't killed at change {moment}"
            code, _ = _go(server, stage, raw, out, 0)
            assert code == 0, f"{stage} doesn't go on after a kill at {moment} of {changes}"
            assert _digests(out) == _digests(whole), f"{stage}, killed at {moment} of {changes}"


def test_ctrl_c_says_what_is_kept(tmp_path: Path) -> None:
    command = f"{sys.executable} -m sdgbias.cli sample --clusters 20000 --out {tmp_path / 'raw'}"
    child = subprocess.Popen(
        command.split(),
        env=environment(),
        stderr=subprocess.PIPE,
        text=True,
        # a shell's background job, as a runner of tests may be one, ignores the signal
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert child.stderr is not None
    while "drawing clusters" not in child.stderr.readline():
        assert child.poll() is None, "it ended before it was interrupted"
    child.send_signal(signal.SIGINT)
    line = child.communicate(timeout=600)[1].splitlines()[-1]
    assert child.returncode == 130
    kept = "what is finished is kept (drawing clusters); run the same command again to go on"
    assert line == f"interrupted: {kept}"
    scoring = Record("", "scoring prompts", 640, 1762)
    assert interruption(scoring).startswith("interrupted: 640 of 1,762 prompts are kept; run")
