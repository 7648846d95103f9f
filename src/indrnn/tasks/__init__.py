"""The paper's tasks: data, loss and metric of each."""
