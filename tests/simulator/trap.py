"""What a hostile checkpoint names. Nobody trusts this module, so nobody imports it: that alone would run its code."""
