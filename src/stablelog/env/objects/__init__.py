"""Object stores: the interface through which the code reads and writes objects, and its implementations.

An object has a key, such as `topics/a-0/0001.log`, and a content that never changes. Every implementation gives these
promises, and no other is relied upon:

- `create` of a key has one winner, whoever tries it at the same time. This is the only operation that orders writers.
- An object that was created is durable, and every later `get`, `get_range` and `list_after` shows it.
- `list_after` returns all keys in the order of their bytes.

A request to a store may have an unclear result: the answer is lost, and the request may be applied now, later or never.
`StoreRequests` is one attempt, with such results. `ObjectStore` repeats attempts within a time limit and clears up the
unclear ones: it reads the key back and compares the content. A caller of `create` therefore puts something unique, a
nonce, into the content.

| module | what it reaches |
|---|---|
| `cloud` | S3, Google Cloud Storage, Azure and stores that speak S3, through obstore; also memory |
| `directory` | a local directory, with synced files |
| `stablelog.testing.sim_objects` | a simulation with delays, unclear results and writes that are applied late |

`opening` opens the store of a URL, and `check` proves a store's promises.
"""
