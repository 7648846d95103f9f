"""Language modelling of the Penn Treebank and any text; `recipe` has the options and the paper's rows."""
