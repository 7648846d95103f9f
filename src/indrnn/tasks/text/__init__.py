"""Language modelling: the Penn Treebank and any text."""
