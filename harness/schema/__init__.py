"""Every setting and every result record, once."""
