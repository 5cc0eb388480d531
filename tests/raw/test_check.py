"""`raw check` on folders with one defect each."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest

from sdgbias.errors import InputError, UsageError
from sdgbias.raw import clusters
from sdgbias.raw.check import RawReport, check_raw
from sdgbias.raw.series import SERIES
from sdgbias.raw.sources import source, source_of_series, sources
from sdgbias.raw.synthetic import write_sample

REPOSITORY = Path(__file__).resolve().parents[2]
OPEN = REPOSITORY / "data" / "indicators"
LABELS, TILES = "sustainbench_labels", "sustainbench_tiles"
METADATA, PHOTOS = "mapillary_metadata", "mapillary_imagery"


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sample") / "raw"
    write_sample(folder, 16, 3, ["NM", "KE", "IA", "KM"])  # KM: SustainBench has no photos
    return folder


@pytest.fixture
def raw(sample: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(sample, tmp_path / "raw", copy_function=shutil.copy))


def check(folder: Path, indicators: Path | None = None) -> tuple[RawReport, str]:
    report = check_raw(folder, indicators)
    return report, "\n".join(report.lines())


def states(report: RawReport) -> dict[str, tuple[str, str]]:
    """source -> its state, what was found."""
    return {f.source: (f.state, f.found) for f in report.findings}


def test_every_source_says_all_that_a_person_needs() -> None:
    text = (REPOSITORY / "docs" / "how-to" / "data.md").read_text(encoding="utf-8")
    rows = {line.split("`")[1]: line for line in text.splitlines() if line.startswith("| `")}
    assert len({entry.id for entry in sources()}) == len(sources()) == 12
    for entry in sources():
        needed = (entry.title, entry.origin, entry.licence, entry.citation, entry.get, entry.files)
        assert all(needed) and entry.url.startswith("https://")
        assert "\n" not in entry.get + entry.citation
        assert entry.licence in rows[entry.id] and entry.url in rows[entry.id]
    assert len(source(TILES).bytes) == 6 and all(name in text for name in source(TILES).bytes)
    assert 56 - len(source(PHOTOS).none_for) == 48
    with pytest.raises(UsageError, match="unknown source 'gdl'; valid: .*gdl_area"):
        source("gdl")
    assert sorted(name for entry in sources() for name in entry.series) == sorted(SERIES)
    for name in {path.name.split(".")[0] for path in OPEN.glob("*.csv*")} - {"gdl_region_names"}:
        shipped = source_of_series(name)
        assert shipped is not None and shipped.redistributable
        assert shipped.licence.startswith("CC BY 4.0")
    assert source_of_series("nothing") is None


def test_a_complete_folder(raw: Path) -> None:
    before = sorted((p, p.stat().st_mtime_ns) for p in raw.rglob("*"))
    report, text = check(raw)
    assert before == sorted((p, p.stat().st_mtime_ns) for p in raw.rglob("*")), "nothing is written"
    found = states(report)
    assert report.ok and report.exit_code == 0 and set(found) == {entry.id for entry in sources()}
    missing = {name for name, (state, _) in found.items() if state == "missing"}
    assert missing == {"dhs_gps", "gdl_area", "uis"}, "the sample has none"
    assert found[LABELS][1].startswith("16 clusters, 4 of 56 countries")
    tiles = len(set(raw.glob("dhs_npzs/*/*.npz")))
    assert found[TILES][1].startswith(f"tiles of {tiles} of 16 clusters")
    assert report.pictures == tiles
    assert "SustainBench has none of KM" in found[PHOTOS][1]
    assert found[PHOTOS][1].startswith("3 of 3 countries"), "KM isn't expected"
    last = f"A build can run. Next: sdgbias build --raw {raw} --indicators {raw}/indicators"
    assert text.splitlines()[-1] == last


def test_an_empty_folder_names_everything_and_where_it_is_had(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no folder .*sdgbias raw check"):
        check_raw(tmp_path / "none")
    report, text = check(tmp_path, tmp_path / "none")
    assert report.exit_code == 3
    assert set(states(report)) == {entry.id for entry in sources()}
    assert {state for state, _ in states(report).values()} == {"missing"}
    assert all(entry.url in text for entry in sources())
    assert text.splitlines()[-1].startswith("A build can't run yet")


def without_labels(raw: Path) -> None:
    (raw / clusters.LABELS_FILE).unlink()


def cut_labels(raw: Path) -> None:
    content = (raw / clusters.LABELS_FILE).read_bytes()
    (raw / clusters.LABELS_FILE).write_bytes(content[: content.index(b",lon")])


def odd_labels(raw: Path) -> None:
    table = pd.read_csv(raw / clusters.LABELS_FILE, dtype=str, keep_default_na=False)
    table.loc[2, "asset_index"] = "-9.0"
    table = pd.concat([table, table.tail(1)])
    table.to_csv(raw / clusters.LABELS_FILE, index=False, encoding="latin-1")


def without_photos_of_a_country(raw: Path) -> None:
    shutil.rmtree(raw / "mapillary" / "imagery" / "KE")


def without_tiles_of_a_country(raw: Path) -> None:
    for survey in raw.glob("dhs_npzs/NM-*"):
        shutil.rmtree(survey)


def metadata_without_clusters(raw: Path) -> None:
    path = raw / "mapillary" / "metadata" / "KE.csv"
    pd.read_csv(path, dtype=str).drop(columns="DHSID_EA").to_csv(path, index=False)


def half_a_zip(raw: Path) -> None:
    archive = Path(zipped(raw / "mapillary" / "imagery" / "KE"))
    archive.write_bytes(archive.read_bytes()[: archive.stat().st_size // 2])


def zipped(folder: Path) -> str:
    """The photos of a country as one archive in place of the folder."""
    archive = shutil.make_archive(str(folder), "zip", folder.parent, folder.name)
    shutil.rmtree(folder)
    return archive


def series_with_a_wrong_code(raw: Path) -> None:
    [path] = raw.glob("indicators/unsd_sdg/*sh_acs_unhc*")
    path.write_text("geo_area,nature,year,sh_acs_unhc\nKEN,e,2015,60\n")


#: damage, source, its state, what is said, exit code
DAMAGES = [
    (without_labels, LABELS, "missing", "no dhs_final_labels.csv; nothing can be built", 3),
    (cut_labels, LABELS, "broken", "missing column(s)", 3),
    (odd_labels, LABELS, "partial", "value-out-of-range, 1 value(s) will be blanked", 0),
    (odd_labels, LABELS, "partial", "duplicate-cluster, 1 row(s) will leave", 0),
    (without_photos_of_a_country, PHOTOS, "partial", "without KE: pictures show the tile", 0),
    (without_tiles_of_a_country, TILES, "partial", "4 of dhs_NG_SZ.tar.gz get no picture", 0),
    (metadata_without_clusters, METADATA, "broken", "a build stops there", 0),
    (half_a_zip, PHOTOS, "broken", "KE.zip: unreadable zip", 0),
    (series_with_a_wrong_code, "unsd_sdg", "broken", "fix this first: ", 3),
]


@pytest.mark.parametrize(("damage", "name", "expected", "words", "code"), DAMAGES)
def test_a_damage_has_its_row(
    raw: Path, damage: Callable[[Path], None], name: str, expected: str, words: str, code: int
) -> None:
    damage(raw)

    report, text = check(raw)

    assert states(report)[name][0] == expected
    assert words in text
    assert report.exit_code == code


def test_columns_and_archives_go_by_name(raw: Path) -> None:
    want = check(raw)[0]
    path = raw / "mapillary" / "metadata" / "KE.csv"
    table = pd.read_csv(path, dtype=str)
    path.unlink()
    path = path.with_suffix(".CSV")
    table[table.columns[::-1]].rename(columns={"id": "Image_ID"}).to_csv(path, index=False)
    zipped(raw / "mapillary" / "imagery" / "KE")

    assert check(raw)[0] == want


def test_series_that_are_missing_and_countries_that_they_lack(raw: Path, tmp_path: Path) -> None:
    """The licences of some keep them out of the project's folder; aggregates are no countries."""
    report, text = check(raw, OPEN)
    assert states(report)["who_gho"][0] == "missing"
    assert "no question of physical_inactivity" in text
    # stunting, wasting and electricity lose their regional values
    assert "other series only" in text
    folder = tmp_path / "series"
    (folder / "unsd_sdg").mkdir(parents=True)
    table = pd.read_csv(OPEN / "eg_elc_accs.csv", dtype=str, keep_default_na=False)
    table[table["iso3"] != "NAM"].to_csv(folder / "eg_elc_accs.csv", index=False)
    name = "ddf--datapoints--sh_acs_unhc--by--geo_area--nature--units--year.csv"
    world = "geo_area,nature,units,year,sh_acs_unhc\n1,e,i,2015,64\n202,e,i,2015,45\n"
    (folder / "unsd_sdg" / name).write_text(world)
    report, text = check(raw, folder)
    state, found = states(report)["unsd_sdg"]
    assert state == "partial" and "eg_elc_accs 54" in found, "55 countries, one taken out"
    assert "sh_acs_unhc" not in found
    assert states(report)["gdl_shdi"][0] == "missing"
    assert "no question of ed_health_alignment, shdi" in text


def test_packed_tarballs_in_the_folder(raw: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One of the published size is unpacked, one of another size is downloaded again."""
    shutil.rmtree(raw / "dhs_npzs")
    for name in ("dhs_NG_SZ.tar.gz", "dhs_IA_IA.tar.gz"):
        (raw / name).write_bytes(b"half")
    monkeypatch.setitem(source(TILES).bytes, "dhs_NG_SZ.tar.gz", 4)  # type: ignore[arg-type]

    report, text = check(raw)

    assert states(report)[TILES][0] == "broken"
    assert f"unpack dhs_NG_SZ.tar.gz: mkdir -p {raw / 'dhs_npzs'} && tar -xzf" in text
    assert "download dhs_IA_IA.tar.gz again: it has 4 of 24,046,259,399 published bytes" in text
    assert text.splitlines()[-1].endswith("--no-images")
