"""Golden records: what three rounds of every method and preset gave, so that no change moves a bit unseen."""
