"""Tables of the guide and of the pages of methods: what was measured while methods and rules were chosen."""
