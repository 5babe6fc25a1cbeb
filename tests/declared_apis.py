"""What the modules of the APIs declare, as the tables that tests compare with the documents and with the broker."""

from stablelog.broker.apis.served import served_apis
from stablelog.wire.api import ApiKey

APIS = served_apis()
RIGHTS = {ApiKey(key): api.rights for key, api in APIS.items()}
# By the name of the API, and behind a comma the requests to which a row applies.
CODES = {
    f"{ApiKey(key).message_name}{row and ', '}{row}": codes
    for key, api in APIS.items()
    for row, codes in api.codes.items()
}
WHILE_FULL = {
    ApiKey(key).message_name: api.while_full for key, api in APIS.items() if api.while_full is not None
}
REFUSED_WHILE_FULL = {name: while_full.code for name, while_full in WHILE_FULL.items()}
SERVED_FROM_HALF = {name for name, while_full in WHILE_FULL.items() if while_full.is_served_from_half}
