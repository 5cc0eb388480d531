"""The order and the sections in which `sdgbias --help` lists its commands, with a line for each."""

from __future__ import annotations

from typing import Any

from typer.core import TyperGroup

from sdgbias.cli.examples import teach

#: Section -> command -> what it does, in the order in which a team meets them.
SECTIONS = {
    "First": {
        "demo": "the whole job once, on synthetic data and embedded models",
    },
    "Data": {
        "sample": "write synthetic raw data of places",
        "raw": "check the raw data: what is there, missing or broken",
        "build": "build a benchmark from raw data",
        "people": "sample and build the second suite: pictures of people",
        "suite": "check and build your own questions",
        "review": "have people review questions, and read their agreement",
        "release": "write and read the files of the authors' release",
    },
    "Models": {
        "register-model": "add a model from a hub, a folder or an endpoint",
        "models": "add, list, show, compare, enable and retire models",
    },
    "Scores": {
        "plan": "what scoring a model would cost",
        "evaluate": "score a model under four views and five tests",
        "cade": "tune and apply CADE on files of predictions",
    },
    "Results": {
        "results": "the headline table, or any SQL query",
        "report": "write the report as HTML pages",
        "serve": "show the results as a web application",
        "analyse": "baselines, ablations, groups, harm, calibration",
        "reproduce": "every table and figure of the papers, ours beside theirs",
        "publish": "write results and the benchmark in the formats of others",
        "wandb": "send results to Weights & Biases",
    },
    "Nights": {
        "nightly": "one night: score, compare, publish, notify",
        "gate": "judge the newest runs, accept a breach, send the message",
        "stack": "start, show and end server, workers and schedule",
    },
    "Maintenance": {
        "selfcheck": "measure planted models: does the instrument measure right?",
        "store": "sizes, retention, compaction and checks of the results",
    },
}


class Sections(TyperGroup):
    """A group whose help lists the commands by section."""

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        for section in SECTIONS.values():
            for name, text in section.items():
                self.commands[name].short_help = text
        teach(self)

    def list_commands(self, ctx: Any) -> list[str]:
        return [name for section in SECTIONS.values() for name in section]

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        for title, commands in SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl(list(commands.items()), col_max=16)
