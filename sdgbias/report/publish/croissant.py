"""Croissant 1.1 metadata (mlcommons.org/croissant) of a published dataset folder, with the fields
of its responsible-AI vocabulary (RAI 1.0). Every statement comes from the benchmark's card and its
intended use; a RAI field that neither says anything about is left out."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from sdgbias.benchmark.card.intended_use import intended_use
from sdgbias.files import packaged
from sdgbias.report.publish.runs import json_file

if TYPE_CHECKING:
    from sdgbias.report.publish.dataset import Benchmark

_TYPES = {"int32": "sc:Integer", "int64": "sc:Integer", "double": "sc:Float", "bool": "sc:Boolean"}
_CITATION = (
    "Yeh, C. et al. (2021). SustainBench: Benchmarks for Monitoring the Sustainable Development"
    " Goals with Machine Learning. NeurIPS Datasets and Benchmarks. arXiv:2111.04724"
)
_LICENCES = {
    "CC BY-SA 4.0": "https://creativecommons.org/licenses/by-sa/4.0/",
    "CC0 1.0": "https://creativecommons.org/publicdomain/zero/1.0/",
}


def croissant(
    benchmark: Benchmark,
    rows: Mapping[tuple[str, str], int],
    schemas: Mapping[str, pa.Schema],
    several: bool,
) -> Iterator[bytes]:
    """``rows``: (task, split) -> questions; ``schemas``: task -> columns without pictures;
    ``several``: a question has a list of pictures."""
    distribution = [
        {
            "@type": "cr:FileSet",
            "@id": f"{task}-{split}",
            "name": f"{task}-{split}",
            "description": f"{n:,} questions of task {task}, split {split}",
            "encodingFormat": "application/x-parquet",
            "includes": f"data/{task}/{split}-*.parquet",
        }
        for (task, split), n in rows.items()
    ]
    card = benchmark.card
    yield json_file(
        {
            "@context": json.loads(packaged("data", "croissant_context.json").read_bytes()),
            "@type": "sc:Dataset",
            "conformsTo": [
                "http://mlcommons.org/croissant/1.1",
                "http://mlcommons.org/croissant/RAI/1.0",
            ],
            "name": "sdgbiasbench-rebuilt" + ("-synthetic" if card.get("synthetic") else ""),
            "description": intended_use()["summary"],
            "version": "1.0.0",
            "identifier": benchmark.id,
            "license": _LICENCES.get(benchmark.licence, benchmark.licence),
            "citeAs": _CITATION,
            "keywords": ["sustainable development goals", "bias", "vision-language models"],
            "isLiveDataset": False,
            **_responsible(benchmark),
            "distribution": distribution,
            "recordSet": [
                {
                    "@type": "cr:RecordSet",
                    "@id": f"{task}_{split}",
                    "name": f"{task}_{split}",
                    "key": {"@id": f"{task}_{split}/item_id"},
                    "field": list(_fields(f"{task}_{split}", task, split, schemas, several)),
                }
                for task, split in rows
            ],
        }
    )


def _fields(
    record: str, task: str, split: str, schemas: Mapping[str, pa.Schema], several: bool
) -> Iterator[dict[str, Any]]:
    def field(name: str, kind: str, **more: Any) -> dict[str, Any]:
        source = {
            "fileSet": {"@id": f"{task}-{split}"},
            "extract": {"column": name},
        }
        return {
            "@type": "cr:Field",
            "@id": f"{record}/{name}",
            "name": name,
            "dataType": kind,
            "source": source | more,
        }

    if not several:  # a list of pictures has no data type in Croissant
        image = field("image", "sc:ImageObject", transform={"jsonPath": "bytes"})
        yield image
    for column in schemas[task]:
        yield field(column.name, _TYPES.get(str(column.type), "sc:Text"))


def _responsible(benchmark: Benchmark) -> dict[str, Any]:
    card, use = benchmark.card, intended_use()
    missing = [
        f"{row['label']}: {row['missing']:,} of {row['n']:,} clusters ({row['percent']} %)"
        for row in card.get("missing_labels", ())
    ]
    shares = [
        f"Gold answers of {row['pillar']}: {row['answer']} {row['share']} % of n = {row['n']:,}"
        f" (95 % CI {row['share_low']} to {row['share_high']} %)"
        for row in card.get("table_b", ())
    ]
    held = [
        f"{len(ids):,} questions are withheld, because the terms of {source} don't allow passing"
        " them on."
        for source, ids in benchmark.withheld.items()
    ]
    found = {
        "rai:dataCollection": " ".join(card.get("sources", ())),
        "rai:dataCollectionMissingData": "; ".join(missing),
        "rai:dataUseCases": use["for"],
        "rai:dataBiases": shares,
        "rai:dataLimitations": [*card.get("known_limits", ()), *held],
        "rai:dataSocialImpact": " ".join(("Not for:", *use["not_for"])),
        "rai:personalSensitiveInformation": use["terms"][:1],
    }
    return {name: value for name, value in found.items() if value}
