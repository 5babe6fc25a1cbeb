"""Keys and tokens of an authorization server that tests make up."""

import json

from joserfc import jwk, jwt
from joserfc.jws import JWSRegistry

NOW_S = 1_700_000_000
_MADE = {}


def private_key(kind="RSA", number=0):
    """A private key: made once, because an RSA key takes long."""
    if (kind, number) not in _MADE:
        make = {
            "RSA": lambda: jwk.RSAKey.generate_key(2048),
            "EC": lambda: jwk.ECKey.generate_key("P-256"),
            "OKP": lambda: jwk.OKPKey.generate_key("Ed25519"),
        }[kind]
        _MADE[kind, number] = make()
    return _MADE[kind, number]


def public(key, **more):
    return {**key.as_dict(private=False), **more}


def document(*keys):
    return json.dumps({"keys": list(keys)}).encode()


def token(key, algorithm="RS256", key_id="one", *, now_s=NOW_S, **claims):
    values = {"sub": "alice", "iat": now_s, "exp": now_s + 3600, **claims}
    header = {"alg": algorithm, **({"kid": key_id} if key_id is not None else {})}
    content = {name: value for name, value in values.items() if value is not None}
    return jwt.encode(header, content, key, registry=JWSRegistry(algorithms=[algorithm]))
