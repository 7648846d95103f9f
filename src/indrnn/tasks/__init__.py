"""The paper's problems: data, loss and metric of each."""
