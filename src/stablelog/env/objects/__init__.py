"""Object stores: the interface through which the code reads and writes objects, and its implementations.

An object has a key, such as `topics/a-0/0001.log`, and a content that never changes. Every implementation keeps these
promises. The code relies on no others:

- If several writers create the same key at the same time, exactly one succeeds. No other operation orders writers.
- A created object is durable, and every later `get`, `get_range` and `list_after` finds it.
- `list_after` returns all keys in the order of their bytes.

A request to a store may have an unclear result: the answer is lost, and the request may be applied now, later or never.
`StoreRequests` makes one attempt of a request. `ObjectStore` repeats attempts within a time limit. After an unclear
`create`, it reads the object of the key and compares the content. Therefore, a caller of `create` puts a unique value,
a nonce, into the content.

| module | where the objects are |
|---|---|
| `cloud` | S3, Google Cloud Storage, Azure and stores with the S3 protocol, through obstore; also memory |
| `directory` | a local directory, with synced files |
| `stablelog.testing.sim_objects` | a simulation with delays, unclear results and writes that are applied late |

`opening` opens the store at a URL. `check` tests whether a store keeps the promises.
"""
