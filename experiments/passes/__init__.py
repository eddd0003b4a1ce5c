"""Several passes: what pooling mirrored, scaled and recoloured passes, and other networks, gains with labels kept."""
