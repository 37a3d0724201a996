# Parlay's server, llama.cpp's libraries included, from wheels alone:  docker build -t parlay .
# For NVIDIA GPUs: Dockerfile.cuda, which compiles them.
ARG BASE=debian:bookworm-slim
FROM ${BASE} AS build
RUN apt-get update && apt-get install -y --no-install-recommends \
        python3 python3-venv ca-certificates binutils \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY src src
# Of the 102 MB of llama.cpp's library 77 are for debuggers.
RUN python3 -m venv /opt/parlay \
    && /opt/parlay/bin/pip install --no-cache-dir --no-compile . \
    && /opt/parlay/bin/pip uninstall -y setuptools \
    && strip --strip-unneeded /opt/parlay/lib/python3*/site-packages/xllamacpp/*.so

FROM ${BASE}
# libgomp1: the engine computes on several cores by OpenMP.
RUN apt-get update && apt-get install -y --no-install-recommends python3 libgomp1 ca-certificates \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --create-home --uid 10001 parlay
COPY --from=build /opt/parlay /opt/parlay
# What is fetched and measured outlives the container.
ENV PATH=/opt/parlay/bin:$PATH PARLAY_CACHE=/data/cache HF_HOME=/data/huggingface
RUN mkdir -p /data/cache /data/huggingface /models && chown -R parlay /data
USER parlay
VOLUME ["/models", "/data"]
EXPOSE 8080
# Every address inside the container; compose.yaml publishes the port on this machine only.
ENTRYPOINT ["parlay"]
CMD ["serve", "--host", "0.0.0.0", "--allow-public-without-key"]
