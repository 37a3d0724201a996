# Parlay's server. CPU:  docker build -t parlay .
# CUDA: docker build -t parlay:cuda --build-arg BASE=nvidia/cuda:12.8.1-devel-ubuntu24.04 \
#         --build-arg CMAKE_ARGS=-DGGML_CUDA=on .   (run it with --gpus all)
# A build sees no GPU and does not know where its image will run, hence GGML_NATIVE=OFF: for all
# common GPUs and CPUs. CMAKE_ARGS="-DGGML_CUDA=on -DCMAKE_CUDA_ARCHITECTURES=90" is one GPU alone.
ARG BASE=debian:bookworm-slim
FROM ${BASE} AS build
ARG CMAKE_ARGS=
RUN apt-get update && apt-get install -y --no-install-recommends \
        python3 python3-venv python3-dev build-essential cmake git ca-certificates \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY src src
RUN python3 -m venv /opt/parlay \
    && CMAKE_ARGS="-DLLAVA_BUILD=OFF -DGGML_NATIVE=OFF ${CMAKE_ARGS}" \
        /opt/parlay/bin/pip install --no-cache-dir ".[structured]"

FROM ${BASE}
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
