"""The lookup table: axes, file format, building it from measurements. Filled by a later version."""
