"""The lab: the paper reproduced, measured and reported. Behind the extra `lab`; the library never imports it."""
