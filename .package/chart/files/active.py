"""
Labels the active one of two gateways: this pod has the label ``rewind/active`` while its own gateway is ready to serve,
and the service for clients selects pods by that label. The waiting gateway's pod is healthy, too, so that a rolling
update goes through both.

Runs next to the gateway: READYZ is the url of its readiness, API the pod's own url in Kubernetes' API.
"""

import json
import os
import signal
import ssl
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

LABEL = "rewind/active"
LOOK_SECONDS = 1.0
SAY_AGAIN_SECONDS = 60.0
ACCOUNT = Path(os.environ.get("ACCOUNT", "/var/run/secrets/kubernetes.io/serviceaccount"))


def is_active(readyz: str) -> bool:
    """Whether the gateway serves clients. It is in this pod, so its certificate need not be verified."""
    trusting = ssl.create_default_context()
    trusting.check_hostname, trusting.verify_mode = False, ssl.CERT_NONE
    try:
        with urllib.request.urlopen(readyz, timeout=5, context=trusting) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def say(api: str, active: bool) -> None:
    """Sets the label, or removes it (RFC 7396)."""
    request = urllib.request.Request(
        api,
        json.dumps({"metadata": {"labels": {LABEL: "true" if active else None}}}).encode(),
        {
            "Authorization": f"Bearer {(ACCOUNT / 'token').read_text().strip()}",  # Kubernetes renews the file
            "Content-Type": "application/merge-patch+json",
        },
        method="PATCH",
    )
    authority = ACCOUNT / "ca.crt"
    context = ssl.create_default_context(cafile=authority) if authority.exists() else None
    with urllib.request.urlopen(request, timeout=5, context=context):
        pass


def main() -> None:
    """Sets the label until SIGTERM. Then nothing is to be done: a pod that ends leaves its services by itself."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    readyz, api = os.environ["READYZ"], os.environ["API"]
    said: bool | None = None
    said_at = 0.0
    while True:
        active = is_active(readyz)
        if active != said or time.monotonic() - said_at > SAY_AGAIN_SECONDS:
            try:
                say(api, active)
            except OSError as error:
                print(f"the label could not be set: {error}", file=sys.stderr, flush=True)
            else:
                if active != said:
                    print("active" if active else "waiting", flush=True)
                said, said_at = active, time.monotonic()
        time.sleep(LOOK_SECONDS)


if __name__ == "__main__":
    main()
