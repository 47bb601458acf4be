"""Who may ask a capture's API, and how one who may not is answered."""

from typing import Any

from consumers.control.api.access.credentials import Credentials

BASIC = {"Authorization": "Basic YW5hOnNlOmNyZXQ="}
USERS = Credentials({"ana": "se:cret"})


def is_refused(answer: tuple[int, Any], status: int, code: str) -> bool:
    text = answer[1]["error_msg"]
    return answer[0] == status and f"[{code}]" in text and "\n" not in text
