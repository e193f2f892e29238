# Simulated users as an OpenEnv server: docker build -f requirements/openenv.Dockerfile -t attune-users . && docker run -p 127.0.0.1:8000:8000 attune-users
FROM python:3.12-slim
WORKDIR /source
COPY setup.cfg pyproject.toml README.md LICENSE attune_users.py ./
COPY simulator simulator
COPY curriculum curriculum
COPY attune_rl attune_rl
RUN pip install --no-cache-dir openenv==0.10.0 .
WORKDIR /
USER nobody
EXPOSE 8000
ENTRYPOINT ["python", "-m", "attune_rl.openenv", "--host", "0.0.0.0"]
