"""Training a model on rollouts. The layer above :mod:`ragen.llm_agent`; nothing below imports it.

``python train.py --config-name tiny`` trains a model of about 160,000 parameters on a CPU, from scratch:

    scripted backend -> LLMAgentProxy -> demonstrations -> warm_up              (supervised learning of the format)
    the model itself -> LLMAgentProxy -> trajectories -> filtering -> updates   (reinforcement learning by GRPO)

Advantages, policy loss and aggregation are verl's (``verl.trainer.ppo.core_algos``); prompts, masks, scores and
normalization are the same as for any model. The training therefore also tests these end to end: with
``trainer.reward_sign: -1`` the same code must learn to fail.
"""
