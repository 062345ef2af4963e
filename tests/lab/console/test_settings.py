"""`egalitarian show`: settings by method, with sources, and with what was changed."""

from __future__ import annotations

import re


def test_show_says_what_was_changed_here(command) -> None:
    changed = ["show", "addition-97", "--set", "methods.egd.optim.lr=2.0"]
    out = command(*changed, "--sources")[1]
    assert re.search(r"optim\.lr +2 +changed with --set", out)
    assert re.search(r"optim\.lr +0\.7 +paper, Table 1", out)
    out = command(*changed, "-m", "sgd,egd")[1]
    assert re.search(r"optim\.lr +0\.7 +2\* ", out)
    assert "*: changed with --set." in out
    assert re.search(r"paper: epochs +5392 +- ", out)  # what it says of EGD is of another learning rate


def test_show_of_some_methods_shows_no_other(command) -> None:
    for more in ([], ["--sources"]):
        out = command("show", "addition-97", "-m", "egd", *more)[1]
        assert re.search(r"optim\.lr +0\.7", out)
        assert "row-norm" not in out.partition("Not shown")[0]
        assert "5392" not in out
    code, _, err = command("show", "addition-97", "-m", "edg")
    assert code == 2
    assert "did you mean 'egd'" in err


def test_show_says_what_is_clipped_and_whose_gradients_are_filtered(command) -> None:
    assert not re.search(r"^ *clip ", command("show", "addition-97", "-m", "egd")[1], re.MULTILINE)
    chain = 'transform=[{name="momentum",beta=0.9,on="targets"},{name="polar"}]'
    out = command("show", "addition-97", "-m", "egd", "--set", "clip=2", "--set", chain)[1]
    assert re.search(r"^ *clip +2\*", out, re.MULTILINE)
    assert "on targets" in out
