"""How fast are training, rollouts and the driver, and how do they compare with TRL and with vLLM alone?"""
