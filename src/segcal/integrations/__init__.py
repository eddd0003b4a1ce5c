"""segcal inside other packages; each module imports only what it needs."""
