"""Methods share these parts: class rows, prototypes, headers, models, extractors of a group, public outputs, means."""
