"""Bad raw data through the real command line: one clear line, or a row in quarantine with its rule;
nothing else is lost."""

from __future__ import annotations

import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from sdgbias.raw.check import check_raw
from sdgbias.raw.images.image_store import ImageSettings
from tests.builders.commands import ok, refused, sdgbias

pytestmark = pytest.mark.slow

LABELS = "dhs_final_labels.csv"
COLUMNS = "series,iso3,region,stratum,year,value,source"


@pytest.fixture(scope="module")
def raw(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bad") / "raw"
    ok("sample", "--out", folder, "--clusters", 30, "--seed", 11, "--countries", "NM,KE,IA,BF")
    return folder


def copy(raw: Path, to: Path) -> Path:
    return Path(shutil.copytree(raw, to))


def table(folder: Path) -> pd.DataFrame:
    return pd.read_csv(folder / LABELS, dtype=str, keep_default_na=False)


def complete(folder: Path) -> list[str]:
    """Clusters with tile and photos."""
    photos = {p.name for p in folder.glob("mapillary/imagery/*/*")}
    return sorted(t.stem for t in folder.glob("dhs_npzs/*/*.npz") if t.stem in photos)


def tile(folder: Path, cluster: str) -> Path:
    return folder / "dhs_npzs" / cluster[:10] / f"{cluster}.npz"


def quarantine_of(out: Path) -> pd.DataFrame:
    return pd.concat(
        [pd.read_parquet(path) for path in sorted((out / "quarantine").glob("*.parquet"))],
        ignore_index=True,
    )


def build(folder: Path, out: Path, *stages: str) -> pd.DataFrame:
    """These stages, in this process (the command line has its turn below); returns the
    quarantine."""
    from sdgbias.benchmark import build as module

    steps: dict[str, Callable[[], object]] = {
        "clusters": lambda: module.build_clusters(folder, out),
        "images": lambda: module.build_images(folder, out, ImageSettings(), 1),
        "series": lambda: module.build_series(folder / "indicators", out),
        "items": lambda: module.build_items(out),
    }
    for stage in stages:
        steps[stage]()
    return quarantine_of(out)


@pytest.fixture(scope="module")
def started(raw: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A benchmark of which only the clusters are made."""
    out = tmp_path_factory.mktemp("started") / "benchmark"
    build(raw, out, "clusters")
    return out


@pytest.fixture(scope="module")
def spoiled(
    raw: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[dict[str, str], Path, pd.DataFrame]:
    """One raw folder with a defect on a cluster each, built once: (defect -> cluster, benchmark,
    quarantine)."""
    folder = copy(raw, tmp_path_factory.mktemp("spoiled") / "raw")
    ids = complete(folder)
    names = (
        *(
            "duplicate",
            "span",
            "wrong-year",
            "iso-code",
            "latin-1",
            "blank",
            "minus-nine",
            "truncated-tile",
            "channel-last",
            "all-zero",
        ),
        *("scaled", "corrupt-photo", "no-tile", "no-photo", "other-cluster"),
    )
    defect = dict(zip(names, ids, strict=False))
    rows = table(folder).set_index("DHSID_EA", drop=False)
    year = rows["year"].astype(int)
    rows.loc[defect["span"], "year"] = f"{year[defect['span']]}-{year[defect['span']] + 1}"
    rows.loc[defect["wrong-year"], "year"] = (
        f"{year[defect['wrong-year']] + 2}-{year[defect['wrong-year']] + 3}"
    )
    rows.loc[defect["iso-code"], "cname"] = "BFA"
    rows.loc[defect["latin-1"], "adm1fips"] = "São Tomé"
    rows.loc[defect["blank"], ["women_bmi", "asset_index", "urban"]] = " "
    rows.loc[defect["minus-nine"], ["asset_index", "women_bmi", "adm1dhs"]] = "-9.0"
    rows = pd.concat([rows, rows.loc[[defect["duplicate"]]].assign(women_edu="")])
    rows.to_csv(folder / LABELS, index=False, encoding="latin-1")
    path = tile(folder, defect["truncated-tile"])
    path.write_bytes(path.read_bytes()[:3000])
    np.savez(tile(folder, defect["channel-last"]), x=np.ones((255, 255, 8), dtype=np.float32))
    np.savez(tile(folder, defect["all-zero"]), x=np.zeros((8, 255, 255), dtype=np.float32))
    np.savez(tile(folder, defect["scaled"]), x=np.full((8, 255, 255), 1200, dtype=np.float32))
    for photo in next(folder.glob(f"mapillary/imagery/*/{defect['corrupt-photo']}")).iterdir():
        photo.write_bytes(photo.read_bytes()[:200])
    tile(folder, defect["no-tile"]).unlink()
    shutil.rmtree(next(folder.glob(f"mapillary/imagery/*/{defect['no-photo']}")))
    _give_photo_of(
        folder,
        defect["other-cluster"],
        next(i for i in ids if i[:2] == defect["other-cluster"][:2] and i not in defect.values()),
    )
    out = folder.parent / "benchmark"
    few = ("--mcq", 24, "--regression", 6)
    ok("build", "--raw", folder, "--indicators", folder / "indicators", "--out", out, *few)
    return defect, out, pd.read_parquet(out / "quarantine.parquet")


def _give_photo_of(folder: Path, cluster: str, other: str) -> None:
    """One of the cluster's photos was unpacked into another cluster's folder, and its row says
    so."""
    path = folder / "mapillary" / "metadata" / f"{cluster[:2]}.csv"
    rows = pd.read_csv(path, dtype=str)
    at = rows.index[rows["DHSID_EA"] == cluster][0]
    here, there = rows.loc[at, "path"], rows.loc[at, "path"].replace(cluster, other)
    (folder / "mapillary" / "imagery" / here).rename(folder / "mapillary" / "imagery" / there)
    rows.loc[at, "path"] = there
    rows.to_csv(path, index=False)


@pytest.mark.parametrize(
    ("defect", "where", "rule"),
    [
        ("duplicate", "clusters", "duplicate-cluster"),
        ("wrong-year", "clusters", "inconsistent-metadata"),
        ("iso-code", "clusters", "unknown-country"),
        ("minus-nine", "labels", "value-out-of-range"),
        ("truncated-tile", "images", "tile-truncated"),
        ("channel-last", "images", "tile-wrong-shape"),
        ("all-zero", "images", "tile-all-zero"),
        ("scaled", "images", "tile-wrong-scale"),
        ("corrupt-photo", "photos", "photo-corrupt"),
        ("no-tile", "images", "missing-tile"),
        ("no-photo", "photos", "photo-missing-file"),
        ("other-cluster", "photos", "photo-of-other-cluster"),
    ],
)
def test_a_defect_leaves_under_its_rule(
    spoiled: tuple[dict[str, str], Path, pd.DataFrame], defect: str, where: str, rule: str
) -> None:
    clusters, _, quarantine = spoiled
    own = quarantine[quarantine["key"].str.startswith(clusters[defect])]
    assert (where, rule) in set(zip(own["table"], own["rule"], strict=True)), own.to_string()


def test_what_can_be_read_stays(
    spoiled: tuple[dict[str, str], Path, pd.DataFrame], raw: Path
) -> None:
    defect, out, quarantine = spoiled
    clusters = pd.read_parquet(out / "clusters.parquet").set_index("cluster_id")
    before = table(raw).set_index("DHSID_EA")
    span, twice, nine, blank = (
        defect[name] for name in ("span", "duplicate", "minus-nine", "blank")
    )
    assert clusters.loc[span, "year"] == int(
        before.loc[span, "year"]
    )  # the first year of '2016-2017'
    assert defect["latin-1"] in clusters.index
    assert str(clusters.loc[twice, "women_edu"]) == str(
        float(before.loc[twice, "women_edu"])
    )  # the fuller of the two rows
    assert clusters.loc[[nine, blank], ["asset_index", "women_bmi"]].isna().all(axis=None)
    assert clusters.loc[nine, "adm1dhs"] == 9999 and clusters.loc[blank, "urban"] == ""
    assert not (quarantine["key"] == blank).any()  # a blank is missing, not wrong


def test_nothing_is_lost(spoiled: tuple[dict[str, str], Path, pd.DataFrame], raw: Path) -> None:
    """Every row of the label file is a cluster or has left with a reason; every cluster has an
    image or a reason."""
    _, out, quarantine = spoiled
    clusters, images = (
        pd.read_parquet(out / "clusters.parquet"),
        pd.read_parquet(out / "images.parquet"),
    )
    left = quarantine[quarantine["table"] == "clusters"]
    assert len(clusters) + len(left) == len(table(raw)) + 1
    reasons = set(quarantine.loc[quarantine["table"] == "images", "key"])
    assert set(clusters["cluster_id"]) == set(images["cluster_id"]) | reasons
    assert (quarantine[["table", "key", "rule", "detail"]] != "").all(axis=None)


def _zip_photos(folder: Path, keep: float = 1.0) -> None:
    place = folder / "mapillary" / "imagery" / "KE"
    with zipfile.ZipFile(place.with_suffix(".zip"), "w") as archive:
        for photo in sorted(place.rglob("*.jpeg")):
            archive.write(photo, photo.relative_to(place.parent))
    shutil.rmtree(place)
    data = place.with_suffix(".zip").read_bytes()
    place.with_suffix(".zip").write_bytes(data[: int(len(data) * keep)])


def _labels(text: Callable[[bytes], bytes]) -> Callable[[Path], None]:
    def spoil(folder: Path) -> None:
        path = folder / LABELS
        path.write_bytes(text(path.read_bytes()))

    return spoil


def _series(name: str, text: str) -> Callable[[Path], None]:
    def spoil(folder: Path) -> None:
        path = folder / "indicators" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")

    return spoil


@pytest.mark.parametrize(
    ("spoil", "stage", "words"),
    [
        (_labels(lambda data: b""), "clusters", (LABELS, "no readable CSV")),
        (lambda folder: _zip_photos(folder, 0.5), "images", ("KE.zip", "download it again")),
        (
            _series("gdl_regions.csv", "cname,adm1dhs,gdl_region\nNA,1,NAMr101\n"),
            "series",
            ("gdl_regions.csv", "'NA'", "NM"),
        ),
    ],
)
def test_one_clear_line(
    raw: Path,
    started: Path,
    tmp_path: Path,
    spoil: Callable[[Path], None],
    stage: str,
    words: tuple[str, ...],
) -> None:
    folder, out = copy(raw, tmp_path / "raw"), copy(started, tmp_path / "benchmark")
    spoil(folder)
    before = sorted(out.rglob("*"))
    line = refused(
        3,
        "build",
        "--stage",
        stage,
        "--raw",
        folder,
        "--indicators",
        folder / "indicators",
        "--out",
        out,
    )
    assert all(word in line for word in words), line
    assert not {p.name for p in out.rglob("*.parquet")} - {
        p.name for p in before
    }  # nothing half-made stands there
    assert {f.state for f in check_raw(folder, folder / "indicators").findings} & {
        "broken",
        "missing",
    }  # known beforehand


def test_a_country_missing_from_one_source(raw: Path, tmp_path: Path) -> None:
    """No photos of Kenya: its tiles are shown alone. No series of Namibia: it leaves with a
    reason."""
    folder = copy(raw, tmp_path / "raw")
    shutil.rmtree(folder / "mapillary" / "imagery" / "KE")
    (folder / "mapillary" / "metadata" / "KE.csv").unlink()
    for path in folder.glob("indicators/unsd_sdg/*datapoints*.csv"):
        rows = pd.read_csv(path, dtype=str, keep_default_na=False)
        rows[rows["geo_area"] != "516"].to_csv(path, index=False)
    assert "without KE: pictures show the tile alone there" in ok("raw", "check", folder)
    lost = build(folder, tmp_path / "b", "clusters", "images", "series", "items")
    items = pd.read_parquet(tmp_path / "b" / "items_mcq.parquet")
    assert {"KE", "BF", "IA"} <= set(items["cname"])
    assert set(items.loc[items["cname"] == "KE", "modalities"]) == {"tile, nightlights"}
    assert not (lost["rule"] == "missing-photo").any()
    gone = lost[(lost["rule"] == "no-indicator-value") & lost["key"].str.contains("NM-")]
    assert (
        gone["key"].str.contains("uhc_index").any()
        or gone["detail"].str.contains("uhc_index").any()
    )


def test_raw_check_says_what_is_wrong(tmp_path: Path) -> None:
    assert "no folder" in refused(3, "raw", "check", tmp_path / "none")
    done = sdgbias("raw", "check", tmp_path)
    assert done.returncode == 3 and "Traceback" not in done.stderr
    assert "sustainlab-group.github.io" in done.stdout and "globaldatalab.org" in done.stdout
