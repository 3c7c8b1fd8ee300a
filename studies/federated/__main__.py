"""The command `python -m studies.federated`."""

from studies.command import main

if __name__ == "__main__":
    main("studies.federated.study.FederatedSchemes")
