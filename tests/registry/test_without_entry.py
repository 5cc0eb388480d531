"""What `register-model` and `evaluate FOLDER` ask of the hub and of a folder: connections that
break off, entries of the same folder."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from sdgbias.cli import scores
from sdgbias.errors import RegistryError
from sdgbias.registry import hub
from sdgbias.registry.propose import propose
from sdgbias.scoring import admission
from tests.builders.hub import Hub
from tests.builders.hub_repositories import BIG, SMALL, VLM, saved


@pytest.mark.parametrize("cut", ["Llava-7B", "config.json"])
def test_one_dropped_connection_does_not_end_a_registration(
    root: Path, served: Hub, monkeypatch: pytest.MonkeyPatch, cut: str
) -> None:
    monkeypatch.setattr(hub, "PAUSE", 0.01)
    whole = propose("open/Llava-7B", root, BIG).spec
    served.cut[cut] = 20
    assert propose("open/Llava-7B", root, BIG).spec == whole
    assert not served.cut, "no connection was broken"


def test_a_folder_is_evaluated_without_the_settings_of_an_entry_of_it(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admission, "here", lambda _: SMALL)  # else torch counts the GPUs
    saved(root / "weights/llava", VLM)
    entry = {"name": "llava-vllm", "title": "L", "backend": "vllm", "repo": "local:weights/llava"}
    entry |= {"revision": "local", "state": "candidate", "reason": "x", "batch_size": 512}
    (root / "registry/models/llava-vllm.yaml").write_text(yaml.safe_dump(entry))
    spec = scores.spec_of(root, str(root / "weights/llava"))
    assert (spec.name, spec.backend) == ("llava", "hf") and spec.batch_size != 512


def test_a_folder_of_the_name_of_another_model_is_refused(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its run would be the newest one of that model."""
    monkeypatch.setattr(admission, "here", lambda _: SMALL)
    for folder in ("weights/llava", "tuned/llava"):
        saved(root / folder, VLM)
    entry = {"name": "llava", "title": "L", "backend": "hf", "repo": "local:weights/llava"}
    entry |= {"revision": "local", "state": "candidate", "reason": "x"}
    (root / "registry/models/llava.yaml").write_text(yaml.safe_dump(entry))
    assert scores.spec_of(root, str(root / "weights/llava")).name == "llava"
    with pytest.raises(RegistryError, match="registered from local:weights/llava; give it another"):
        scores.spec_of(root, str(root / "tuned/llava"))
