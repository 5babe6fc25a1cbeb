"""The settings of authorization: a part of the table of all settings (`broker.settings.table`)."""

from typing import Final

from stablelog.broker.settings.setting import BrokerSetting
from stablelog.security.principal import parse_principal
from stablelog.settings import SettingType, boolean

STANDARD_AUTHORIZER: Final = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"


def _parse_class(text: str) -> str:
    name = text.strip()
    if name not in ("", STANDARD_AUTHORIZER):
        raise ValueError(f"this authorizer is not supported; the only one is {STANDARD_AUTHORIZER}")
    return name


def _parse_principals(text: str) -> frozenset[str]:
    names = [part.strip() for part in text.split(";")]
    return frozenset(str(parse_principal(name)) for name in names if name)


ACL_SETTINGS: tuple[BrokerSetting, ...] = (
    BrokerSetting(
        "authorizer.class.name",
        SettingType(_parse_class, f"empty or {STANDARD_AUTHORIZER}"),
        "",
        f"`{STANDARD_AUTHORIZER}`: the broker checks each request against its ACLs. Empty: the broker has no ACLs, and "
        "every client may do everything.",
    ),
    BrokerSetting(
        "super.users",
        SettingType(_parse_principals, "principals with `;` between them, such as User:admin;User:ops"),
        "",
        "The principals that may do everything, whatever the ACLs say. Several are separated by `;`.",
    ),
    BrokerSetting(
        "allow.everyone.if.no.acl.found",
        boolean(),
        "false",
        "Whether every client may do everything with a resource to which no ACL applies.",
    ),
)
