"""`raw check` on folders with one defect each."""

from __future__ import annotations

import io
import shutil
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from sdgbias.errors import InputError, UsageError
from sdgbias.raw import clusters
from sdgbias.raw.check import RawReport, check_raw
from sdgbias.raw.folders import tarball_fault
from sdgbias.raw.series import SERIES
from sdgbias.raw.sources import source, source_of_series, sources
from sdgbias.raw.synthetic import write_sample

REPOSITORY = Path(__file__).resolve().parents[2]
OPEN = REPOSITORY / "data" / "indicators"


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sample") / "raw"
    write_sample(folder, 16, 3, ["NM", "KE", "IA", "KM"])  # KM: SustainBench has no photos
    return folder


@pytest.fixture
def raw(sample: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(sample, tmp_path / "raw"))


def check(folder: Path, indicators: Path | None = None) -> tuple[RawReport, str]:
    report = check_raw(folder, indicators)
    return report, "\n".join(report.lines())


def labels(folder: Path) -> pd.DataFrame:
    return pd.read_csv(folder / clusters.LABELS_FILE, dtype=str, keep_default_na=False)


def found(report: RawReport, name: str) -> str:
    return next(f.found for f in report.findings if f.source == name)


# --- the table of sources
# ----------------------------------------------------------------------


def test_every_source_says_all_that_a_person_needs() -> None:
    assert len({entry.id for entry in sources()}) == len(sources()) == 12
    for entry in sources():
        assert (
            entry.title
            and entry.origin
            and entry.licence
            and entry.citation
            and entry.get
            and entry.files
        )
        assert entry.url.startswith("https://")
        assert "\n" not in entry.get + entry.citation
    assert len(source("sustainbench_tiles").bytes) == 6
    assert 56 - len(source("mapillary_imagery").none_for) == 48
    with pytest.raises(UsageError, match="unknown source 'gdl'; valid: .*gdl_area"):
        source("gdl")


def test_every_series_has_one_source_and_only_open_ones_ship() -> None:
    assert sorted(name for entry in sources() for name in entry.series) == sorted(SERIES)
    shipped = {path.name.split(".")[0] for path in OPEN.glob("*.csv*")} - {"gdl_region_names"}
    for name in shipped:
        entry = source_of_series(name)
        assert entry is not None and entry.redistributable and entry.licence.startswith("CC BY 4.0")
    assert source_of_series("nothing") is None


def test_the_documentation_names_every_source_with_its_licence_and_page() -> None:
    text = (REPOSITORY / "docs" / "how-to" / "data.md").read_text(encoding="utf-8")
    for entry in sources():
        row = next((line for line in text.splitlines() if line.startswith(f"| `{entry.id}` |")), "")
        assert entry.licence in row, entry.id
        assert entry.url in row, entry.id
    for name in source("sustainbench_tiles").bytes:
        assert name in text


# --- raw check
# ----------------------------------------------------------------------


def test_a_complete_folder(raw: Path) -> None:
    report, text = check(raw)
    assert report.ok and report.exit_code == 0
    states = {f.source: f.state for f in report.findings}
    assert states["tiles NG_SZ"] == "present" and states["tiles TD_ZW"] == "unneeded"
    assert states["gdl_shdi"] == states["gdl_regions"] == states["unsd_sdg"] == "present"
    assert found(report, "sustainbench_labels") == "16 clusters, 4 of 56 countries"
    assert "SustainBench has none of KM" in found(report, "mapillary_imagery")
    assert found(report, "mapillary_imagery").startswith("3 of 3 countries")  # KM isn't expected
    assert report.state("mapillary_imagery") == report.state("mapillary_metadata") == "present"
    assert (
        text.splitlines()[-1]
        == f"A build can run. Next: sdgbias build --raw {raw} --indicators {raw}/indicators"
    )
    both = {t.stem for t in raw.glob("dhs_npzs/*/*.npz")} & {
        c.name for c in raw.glob("mapillary/imagery/*/*")
    }
    assert report.with_photo == len(both) > 0
    assert report.pictures == len(set(raw.glob("dhs_npzs/*/*.npz"))) > len(both)


def test_checking_writes_nothing(raw: Path) -> None:
    before = sorted((p, p.stat().st_mtime_ns) for p in raw.rglob("*"))
    check(raw)
    assert before == sorted((p, p.stat().st_mtime_ns) for p in raw.rglob("*"))


def test_no_folder(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no folder .*sdgbias raw check"):
        check_raw(tmp_path / "none")


def test_an_empty_folder_names_everything_and_where_it_is_had(tmp_path: Path) -> None:
    report, text = check(tmp_path, tmp_path / "none")
    assert report.exit_code == 3
    assert {f.state for f in report.findings if not f.source.startswith("tiles")} <= {"missing"}
    for entry in sources():
        if entry.id != "gdl_regions":
            assert entry.url in text
    assert text.splitlines()[-1].startswith("A build can't run yet")


def test_labels_missing_or_broken(raw: Path) -> None:
    path = raw / clusters.LABELS_FILE
    content = path.read_bytes()
    path.unlink()
    assert check(raw)[0].exit_code == 3
    path.write_bytes(content[: content.index(b",lon")])
    report, text = check(raw)
    assert report.exit_code == 3 and report.state("sustainbench_labels") == "broken"
    assert "missing column(s)" in text


def test_a_country_without_photos_or_tiles(raw: Path) -> None:
    shutil.rmtree(raw / "mapillary" / "imagery" / "KE")
    for survey in raw.glob("dhs_npzs/NM-*"):
        shutil.rmtree(survey)
    report, text = check(raw)
    assert (
        report.state("mapillary_imagery") == "partial"
        and "without KE: pictures show the tile" in text
    )
    assert report.state("tiles NG_SZ") == "missing"
    assert "no dhs_NG_SZ.tar.gz" in text and "Google Drive" in text
    assert report.ok


def test_a_country_missing_from_one_series(tmp_path: Path, raw: Path) -> None:
    folder = tmp_path / "series"
    folder.mkdir()
    table = pd.read_csv(OPEN / "eg_elc_accs.csv", dtype=str, keep_default_na=False)
    table[table["iso3"] != "NAM"].to_csv(folder / "eg_elc_accs.csv", index=False)
    report, text = check(raw, folder)
    assert "eg_elc_accs 54" in found(report, "unsd_sdg")  # 55 countries, one taken out
    assert report.state("unsd_sdg") == "partial" and report.state("gdl_shdi") == "missing"
    assert "no question of ed_health_alignment, shdi" in text


def test_series_that_a_licence_keeps_out(raw: Path) -> None:
    report, text = check(raw, OPEN)
    assert report.state("who_gho") == "missing"
    assert "no question of physical_inactivity" in text
    assert (
        "other series only" in text
    )  # stunting, wasting and electricity lose their regional values


@pytest.mark.parametrize("cut", [0.2, 0.9])
def test_truncated_tarball(tmp_path: Path, cut: float) -> None:
    path = tarball(tmp_path / "dhs_AL_DR.tar.gz")
    assert tarball_fault(path) == ""
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * cut)])
    assert "half-finished" in tarball_fault(path, 16_472_693_417)
    assert tarball_fault(path, path.stat().st_size) == ""  # of the published size: not read


def test_damaged_tarball_and_one_that_climbs_out(tmp_path: Path) -> None:
    path = tarball(tmp_path / "dhs_AL_DR.tar.gz")
    data = bytearray(path.read_bytes())
    data[-6] ^= 255  # the checksum at the end of the stream
    path.write_bytes(data)
    assert "damaged" in tarball_fault(path)
    assert "unpacked elsewhere" in tarball_fault(tarball(tmp_path / "x.tar.gz", "../../evil.npz"))
    (tmp_path / "y.tar.gz").write_bytes(b"<html>quota exceeded</html>")
    assert "damaged" in tarball_fault(tmp_path / "y.tar.gz")


def tarball(path: Path, name: str = "AL-2008-5#/AL-2008-5#-00000001.npz") -> Path:
    noise = np.random.default_rng(0).bytes(200_000)
    with tarfile.open(path, "w:gz") as archive:
        for member in (name, "AL-2008-5#/AL-2008-5#-00000002.npz"):
            info = tarfile.TarInfo(member)
            info.size = len(noise)
            archive.addfile(info, io.BytesIO(noise))
    return path


def test_packed_tarballs_in_the_folder(raw: Path) -> None:
    shutil.rmtree(raw / "dhs_npzs")
    tarball(raw / "dhs_NG_SZ.tar.gz")
    half = tarball(raw / "dhs_IA_IA.tar.gz")
    half.write_bytes(half.read_bytes()[:100_000])
    seen: list[tuple[str, int, int]] = []
    report = check_raw(raw, progress=lambda *args: seen.append(args))
    text = "\n".join(report.lines())
    assert (
        report.state("tiles NG_SZ") == "missing"
        and "is complete but packed" in text
        and "tar -xzf" in text
    )
    assert (
        report.state("tiles IA_IA") == "broken"
        and "100,000 of 24,046,259,399 published bytes" in text
    )
    assert any(what.startswith("reading dhs_NG_SZ") and done == total for what, done, total in seen)
    assert text.splitlines()[-1].endswith("--no-images")


def test_short_tiles_and_tiles_too_deep(raw: Path) -> None:
    tile, other = sorted(raw.glob("dhs_npzs/KE-*/*.npz"))[:2]
    tile.write_bytes(tile.read_bytes()[:5000])
    other.write_bytes(b"")
    (raw / "dhs_npzs" / "dhs_TD_ZW").mkdir()
    _, text = check(raw)
    assert "2 tile(s) are cut short" in text
    assert "dhs_TD_ZW is no survey folder" in text


def test_zips_of_photos(raw: Path) -> None:
    folder = raw / "mapillary" / "imagery" / "KE"
    with zipfile.ZipFile(folder.with_suffix(".zip"), "w") as archive:
        for photo in folder.rglob("*.jpeg"):
            archive.write(photo, photo.relative_to(folder.parent))
    before = check(raw)[0]
    shutil.rmtree(folder)
    report, _ = check(raw)
    assert found(report, "mapillary_imagery") == found(before, "mapillary_imagery")
    data = folder.with_suffix(".zip").read_bytes()
    folder.with_suffix(".zip").write_bytes(data[: len(data) // 2])
    report, text = check(raw)
    assert (
        report.state("mapillary_imagery") == "broken"
        and "KE.zip is damaged or a half-finished download" in text
    )


def test_photos_of_another_cluster(raw: Path) -> None:
    path = raw / "mapillary" / "metadata" / "KE.csv"
    table = pd.read_csv(path, dtype=str)
    table.loc[0, "path"] = table["path"].iloc[-1]
    table.loc[1, "lat"] = "60"
    table.to_csv(path, index=False)
    away = next(raw.glob("mapillary/imagery/IA/*"))
    away.rename(raw / "mapillary" / "imagery" / "KE" / away.name)
    _, text = check(raw)
    assert "1 photo(s) of another cluster" in text
    assert "1 photo(s) lie more than 0.15 degrees from their cluster" in text
    assert "folder(s) of another country" in text
    one, two = sorted((raw / "mapillary" / "imagery" / "KE").glob("KE*"))[:2]
    photo = sorted(one.iterdir())[-1]
    photo.rename(two / photo.name)
    assert "in another cluster's folder than the metadata says" in check(raw)[1]


def test_columns_of_metadata_go_by_name(raw: Path) -> None:
    path = raw / "mapillary" / "metadata" / "KE.csv"
    table = pd.read_csv(path, dtype=str)
    want = check(raw)[0]
    table[table.columns[::-1]].rename(columns={"id": "Image_ID"}).to_csv(path, index=False)
    assert check(raw)[0] == want
    table.drop(columns="DHSID_EA").to_csv(path, index=False)
    assert check(raw)[0].state("mapillary_metadata") == "broken"


def test_oddities_of_the_label_file(raw: Path) -> None:
    table = labels(raw)
    table.loc[0, "year"] = f"{table['year'][0]}-{int(table['year'][0]) + 1}"
    table.loc[1, "women_bmi"] = " "
    table.loc[2, "asset_index"] = "-9.0"
    table.loc[3, "adm1fips"] = "São"
    table = pd.concat([table, table.tail(1)])
    path = raw / clusters.LABELS_FILE
    table[table.columns[::-1]].to_csv(path, index=False, encoding="latin-1")
    report, text = check(raw)
    assert report.ok
    assert "not UTF-8 (Latin-1?) from line 5" in text
    assert "another order" in text
    assert "1 survey year(s) such as" in text
    assert "1 label(s) of blanks only" in text
    assert "value-out-of-range, 1 value(s) will be blanked" in text and "asset_index '-9.0'" in text
    assert "duplicate-cluster, 1 row(s) will leave" in text


def test_labels_that_a_spreadsheet_saved_with_semicolons(raw: Path) -> None:
    want = check(raw)[0]
    table = labels(raw)
    table.to_csv(raw / clusters.LABELS_FILE, index=False, sep=";")
    assert check(raw)[0] == want


def test_half_finished_downloads(raw: Path) -> None:
    for name in (
        "dhs_IA_IA.tar.gz.part",
        "mapillary/imagery/KE.zip.crdownload",
        "indicators/who_gho/NCD_PAC.csv.part",
    ):
        (raw / name).write_bytes(b"")
    assert check(raw)[1].count("is a half-finished download; finish it or delete it") == 3


@pytest.mark.parametrize(
    "text",
    ["geo_area,nature,year,sh_acs_unhc\nKEN,e,2015,60\n", "geo_area,nature,year\n404,e,2015\n"],
)
def test_a_series_file_that_stops_a_build(raw: Path, tmp_path: Path, text: str) -> None:
    folder = Path(shutil.copytree(raw / "indicators", tmp_path / "series"))
    next(folder.glob("unsd_sdg/*sh_acs_unhc*")).write_text(text)
    report, said = check(raw, folder)
    assert (
        report.exit_code == 3
        and report.state("unsd_sdg") == "broken"
        and "fix this first: " in said
    )


def test_aggregates_alone_are_no_countries(raw: Path, tmp_path: Path) -> None:
    folder = tmp_path / "series"
    (folder / "unsd_sdg").mkdir(parents=True)
    shutil.copy(OPEN / "eg_elc_accs.csv", folder)
    name = (
        folder / "unsd_sdg" / "ddf--datapoints--sh_acs_unhc--by--geo_area--nature--units--year.csv"
    )
    name.write_text("geo_area,nature,units,year,sh_acs_unhc\n1,e,i,2015,64\n202,e,i,2015,45\n")
    report, _ = check(raw, folder)
    assert "sh_acs_unhc" not in found(report, "unsd_sdg")
