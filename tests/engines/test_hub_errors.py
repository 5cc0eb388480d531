"""What an error while a model's files are read is called: it decides whether the model is put
aside."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest
from huggingface_hub import errors as hub

from sdgbias.engines.hub_errors import translate
from sdgbias.registry.spec import ModelSpec

SPEC = ModelSpec(
    name="m", title="m", backend="hf", repo="owner/m", revision="a" * 40, state="enabled"
)


def wrapped(kind: str, status: int = 0) -> OSError:
    """As transformers raises it: an OSError with the error of the hub's client as its cause."""
    response = httpx.Response(status or 200, request=httpx.Request("GET", "https://hub/owner/m"))
    cause: Exception
    if status:
        cause = getattr(hub, kind)("said by the client", response=response)
    else:
        cause = getattr(hub, kind, getattr(httpx, kind, RuntimeError))("said by the client")
    error = OSError("We couldn't connect to the hub\nand so on")
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("name", "status", "kind"),
    [
        ("GatedRepoError", 403, "Gated"),
        ("HfHubHTTPError", 403, "Gated"),
        ("HfHubHTTPError", 401, "ExpiredToken"),
        ("RepositoryNotFoundError", 404, "ModelError"),
        ("RevisionNotFoundError", 404, "ModelError"),
        ("RemoteEntryNotFoundError", 404, "ModelError"),
        ("LocalEntryNotFoundError", 0, "HubUnreachable"),
        ("ConnectError", 0, "HubUnreachable"),
        ("HfHubHTTPError", 503, "HubUnreachable"),
        ("SomethingElse", 0, "InfrastructureError"),
    ],
)
def test_a_hub_model(name: str, status: int, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_expired")
    error = translate(SPEC, None, "can't load owner's", wrapped(name, status))
    assert type(error).__name__ == kind
    assert str(error).startswith("m: ") and "owner/m" in str(error) and "\n" not in str(error)


def test_what_needs_a_login_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.get_token", lambda: None)
    told = translate(SPEC, None, "can't load", wrapped("GatedRepoError", 401))
    assert type(told).__name__ == "Gated" and "then: hf auth login" in str(told)
    told = translate(SPEC, None, "can't load", wrapped("RepositoryNotFoundError", 401))
    assert type(told).__name__ == "ModelError" and "or: hf auth login" in str(told)


def test_a_repository_without_a_processor_is_not_tried_again() -> None:
    """In transformers' words, which name every other cause as well."""
    error = OSError("Can't load image processor for 'owner/m'. If you were trying to load it from")
    told = translate(SPEC, None, "can't load the processor of", error)
    assert type(told).__name__ == "ModelError"
    assert "has no preprocessor_config.json" in str(told)


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ((), "tokenizer.save_pretrained(FOLDER)"),
        (("tokenizer.model",), "pip install sentencepiece"),
    ],
)
def test_a_tokenizer_that_cannot_be_read_here(
    files: tuple[str, ...], words: str, tmp_path: Path
) -> None:
    """Without sentencepiece transformers takes its file for one of tiktoken's."""
    for name in files:
        (tmp_path / name).touch()
    for text in (
        "`tiktoken` is required to read a `tiktoken` file.",
        "Couldn't instantiate the backend tokenizer from one of: \n(1) a `tokenizers` library",
    ):
        told = translate(SPEC, tmp_path, "can't load the processor of", ValueError(text))
        assert type(told).__name__ == "ModelError" and words in str(told)
        assert "\n" not in str(told)


def test_a_folder_is_always_the_models_own_fault() -> None:
    error = translate(SPEC, Path("/w"), "can't load", wrapped("ConnectError"))
    assert (type(error).__name__, str(error)) == (
        "ModelError",
        "m: can't load /w: We couldn't connect to the hub",
    )


@pytest.mark.parametrize("folder", [None, Path("/w")])
@pytest.mark.parametrize(
    ("error", "words"),
    [
        (
            ValueError("x contains custom code; pass the argument `trust_remote_code=True`"),
            "--trust-remote-code --notes WHO_READ_IT --overwrite",
        ),
        (
            ValueError(
                "The checkpoint has model type `qwen9_vl` but Transformers does not recognize this"
                " architecture."
            ),
            "doesn't know model type qwen9_vl; a newer one may: pip install --upgrade transformers",
        ),
        (
            ImportError("AutoVideoProcessor requires the Torchvision library but it was not found"),
            "pip install --constraint constraints.txt --no-deps torchvision",
        ),
        (
            ImportError("Package `num2words` is required to run SmolVLM processor."),
            'the extra families: pip install --constraint constraints.txt ".[families]"',
        ),
        (
            ModuleNotFoundError("No module named 'timm.data'"),
            "needs the package timm, of the extra families: pip install",
        ),
        (
            ImportError("ParakeetFeatureExtractor requires the librosa library. But that was not"),
            "it needs the package librosa: pip install librosa",
        ),
        (ValueError("Could not load any class"), "Could not load any class"),
    ],
)
def test_files_that_never_load_are_the_models_fault_with_the_next_command(
    error: Exception, words: str, folder: Path | None
) -> None:
    told = translate(SPEC, folder, "can't load the processor of", error)
    assert type(told).__name__ == "ModelError"
    assert words in str(told) and "\n" not in str(told)
