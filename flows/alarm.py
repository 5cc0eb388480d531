"""Configures Prefect to notify the webhook when a night fails or crashes before it could notify
anyone itself.

    PREFECT_API_URL=http://127.0.0.1:4200/api python -m flows.alarm

Run once per server; running it again replaces the address. The address comes from the environment
variable named in the policy and is stored as a block in the server's database, because the server
sends the notification. For a night that reached its end, `sdgbias gate announce` sends the message.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Any, cast
from uuid import UUID

from prefect.blocks.webhook import Webhook
from prefect.client.orchestration import get_client
from prefect.events.schemas.automations import AutomationCore
from prefect.types import SecretDict
from pydantic import SecretStr

from sdgbias.errors import SdgbiasError, UsageError
from sdgbias.nightly import notify
from sdgbias.nightly.regression import policy
from sdgbias.registry import entries

NAME = "sdgbias-night-died"
SAID = (
    '{"text": {{ ("sdgbias: " ~ flow_run.name ~ ": " ~ flow_run.state.name ~ ": " ~'
    ' (flow_run.state.message or "no reason given")) | tojson }}}'
)


def automation(block: UUID) -> dict[str, Any]:
    """The automation in Prefect's format. block: id of the webhook's block."""
    return {
        "name": NAME,
        "description": "Calls the webhook when a night fails or crashes.",
        "trigger": {
            "type": "event",
            "posture": "Reactive",
            "match": {"prefect.resource.id": "prefect.flow-run.*"},
            "match_related": {"prefect.resource.role": "flow", "prefect.resource.name": "nightly"},
            "expect": ["prefect.flow-run.Failed", "prefect.flow-run.Crashed"],
            "threshold": 1,
            "within": 0,
        },
        "actions": [{"type": "call-webhook", "block_document_id": block, "payload": SAID}],
    }


def make(address: str) -> None:
    """Store the address as the block sdgbias-webhook and create the automation that calls it,
    replacing an earlier one."""
    headers = SecretDict({"Content-Type": "application/json"})
    hook = Webhook(url=SecretStr(address), headers=headers)
    block = cast(UUID, hook.save("sdgbias-webhook", overwrite=True))
    made = AutomationCore.model_validate(automation(block))
    with get_client(sync_client=True) as client:
        for before in client.read_automations_by_name(NAME):
            client.delete_automation(before.id)
        client.create_automation(made)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--policy", type=Path, help="the gate's policy file; default: registry/policy.yaml"
    )
    args = parser.parse_args()
    try:
        variable = policy.load(args.policy or policy.find(entries.find_root())).webhook
        address = os.environ.get(variable, "").strip()
        for name, found in (
            (variable, address),
            ("PREFECT_API_URL", os.environ.get("PREFECT_API_URL", "")),
        ):
            if not found:
                raise UsageError(
                    f"{name} is not set; export it: the webhook's address and Prefect's, e.g."
                    " http://127.0.0.1:4200/api"
                )
        if not address.startswith(("http://", "https://")):
            raise UsageError(f"{variable}: Prefect calls http and https addresses only")
        told = notify.target(address)
        make(address)
    except SdgbiasError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    print(f"{NAME}: a night that fails or crashes is reported to {told}")


if __name__ == "__main__":
    main()
