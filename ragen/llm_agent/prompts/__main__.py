"""``python -m ragen.llm_agent.prompts > OUT.yaml``: this package's prompts, as a start for ``agent_proxy.prompts``."""

from ragen.llm_agent.prompts.templates import DEFAULT_PROMPTS

if __name__ == "__main__":
    print(DEFAULT_PROMPTS.dump(), end="")
