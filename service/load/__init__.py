"""The load generator: closed or open loop over HTTP, with every answer checked.

`options` says what to do, `run` does it, `report` is what came of it; `render` and `plot` show it.
Inside: `client` is one connection, `driver` is all connections of one process, with `closed` and
`open` as the two ways to decide when the next request leaves, `processes` is several of them.
"""
