"""Texts for people without what may be a secret in them: URIs, and all that holds one."""

import re
from collections.abc import Iterable, Mapping
from urllib.parse import quote, unquote

MASK = "***"
_SECRET_WORDS = (
    *("password", "passwd", "secret", "token", "credential", "signature", "privatekey", "apikey"),
    *("accesskey", "accountkey", "sharedkey", "encryptionkey", "connectionstring"),
)
_SECRET_NAMES = frozenset({"sig", "sas", "pwd", "pw", "pass"})
_NOT_SECRET_ENDS = ("url", "file", "path")
_URI_NAMES = frozenset({"schemaregistry", "storage", "warehouse"})
_URI_ENDS = ("uri", "url", "endpoint")
_SHORTEST = 4
"""Of what is looked for in a text: shorter ones are no secret, and stand everywhere."""
_URI = re.compile(r"[A-Za-z][A-Za-z0-9+.\-]*://\S+")
"""To the next space: a password may hold quotation marks, and a mark behind a URI may be lost with it."""


def is_secret_name(name: str) -> bool:
    """Tell whether a setting or a parameter of this name holds a secret, however it is written.

    >>> [is_secret_name(name) for name in ("account_key", "sasl-password", "Account%5FKey", "sasl-user", "sas-token")]
    [True, True, True, False, True]
    """
    plain = re.sub("[^a-z0-9]", "", unquote(name).lower())
    if plain.endswith(_NOT_SECRET_ENDS):
        return False
    return plain in _SECRET_NAMES or any(word in plain for word in _SECRET_WORDS)


def is_uri_name(name: str) -> bool:
    """Tell whether a setting or a parameter of this name holds a URI, which may have secrets in it.

    >>> [is_uri_name(name) for name in ("sink_uri", "schema-registry", "sasl-oauth-token-url", "rules", "null")]
    [True, True, True, False, False]
    """
    plain = re.sub("[^a-z0-9]", "", name.lower())
    return plain in _URI_NAMES or plain.endswith(_URI_ENDS)


def mask_setting(name: str, value: str) -> str:
    """Return a setting's text for people, who may send it back: without its secrets, or as it is where it has none.

    Only of settings that are URIs is a part masked: elsewhere ``?``, ``#`` and ``@`` are letters like others.
    """
    if is_secret_name(name):
        return MASK
    return mask_uri(value) if is_uri_name(name) else value


def mask_uri(uri: str) -> str:
    """Return a URI for people: user info, the values of secret parameters and what follows them behind ``#`` are stars.

    Never fails. What is left out has stars in its place.

    >>> mask_uri("kafka://u:p@h:9092/t?sasl-user=u&sasl-password=p#x")
    'kafka://***@h:9092/t?sasl-user=u&sasl-password=***#***'
    """
    head, mark, query = uri.partition("?")
    params, hash_sign, fragment = query.partition("#")
    if "@" in fragment and "://" in head:  # all before it may be a password
        return mask_uri(f"{head.partition('://')[0]}://{MASK}@{fragment.rpartition('@')[2]}")
    head += mark + "&".join(map(_mask_param, params.split("&"))) + hash_sign + (MASK if fragment else "")
    scheme, separator, rest = head.partition("://")
    # The last "@" there is: a password may hold one unescaped, and even a "/" or a "?".
    _, at, after = rest.rpartition("@")
    return f"{scheme}://{MASK}@{after}" if separator and at else head


def mask_text(text: str) -> str:
    """Return a text for people in which every URI is masked, such as a client library's error."""
    return _URI.sub(lambda match: mask_uri(match.group()), text) if "://" in text else text


def mask_value(value: object) -> object:
    """Return a value of a log line or of JSON with every URI in its texts masked; what is no JSON is its text."""
    if isinstance(value, str):
        return mask_text(value)
    if isinstance(value, Mapping):
        return {str(key): mask_value(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [mask_value(item) for item in value]
    return value if value is None or isinstance(value, bool | int | float) else mask_text(str(value))


def without(text: str, secrets: Iterable[str]) -> str:
    """Return a text with stars for each of these values, as a client library may show them in its errors."""
    forms = {form for secret in secrets for form in (secret, quote(secret, safe="")) if len(form) >= _SHORTEST}
    for form in sorted(forms, key=len, reverse=True):
        text = text.replace(form, MASK)
    return mask_text(text)


def _mask_param(param: str) -> str:
    name, equals, _ = param.partition("=")
    return f"{name}={MASK}" if equals and is_secret_name(name) else param
