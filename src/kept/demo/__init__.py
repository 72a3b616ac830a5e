"""The demo: payments into Postgres under each guarantee, the driver killed twice, and an audit of what is there."""
