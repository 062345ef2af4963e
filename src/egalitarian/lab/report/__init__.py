"""From records and closed forms to tables and figures; nothing here trains."""
