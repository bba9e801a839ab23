import numpy as np
import pytest

from attnflow.instruments import manifold, routing


def test_advantage_is_minus_the_score_gradient_over_the_weight(rng):
    """∂/∂s_ij of Σ_i u_i·z_i with u held fixed, by differences."""
    scores, u, v = rng.normal(size=(3, 4)), rng.normal(size=(3, 2)), rng.normal(size=(4, 2))

    def attention(s):
        grown = np.exp(s)
        return grown / grown.sum(axis=1, keepdims=True)

    expected = -attention(scores) * routing.advantage(attention(scores), u, v)
    for i, j in np.ndindex(scores.shape):
        step = np.zeros_like(scores)
        step[i, j] = 1e-6
        change = np.sum(u * ((attention(scores + step) - attention(scores - step)) @ v)) / 2e-6
        assert change == pytest.approx(expected[i, j], abs=1e-8)


def test_users_pull_their_values(rng):
    attention = np.array([[1.0, 0.0, 0.0], [0.5, 0.5, 0.0]])
    u = np.array([[1.0, 0.0], [0.0, 2.0]])
    np.testing.assert_allclose(routing.usage(attention), [1.5, 0.5, 0.0])
    pull = routing.users_error(attention, u)
    np.testing.assert_allclose(pull, [[2 / 3, 2 / 3], [0.0, 2.0], [0.0, 0.0]])
    cosine = routing.value_specialization(attention, u, -pull)
    np.testing.assert_allclose(cosine, [1.0, 1.0, 0.0])


def test_definitions_of_freezing_disagree():
    times = np.linspace(0, 10, 1001)
    fast = routing.freezing(times, np.exp(-times))
    slow = routing.freezing(times, np.where(times < 9, times, 9.0))
    assert fast.near_end == pytest.approx(3, abs=0.05)
    assert fast.slow == pytest.approx(3, abs=0.05)
    assert fast.half_way == pytest.approx(np.log(2), abs=0.01)
    assert slow.half_way == pytest.approx(4.5)
    assert slow.near_end == pytest.approx(8.55, abs=0.02)
    assert routing.freezing(times, np.ones(1001)) == (0, 0, 0)
    with pytest.raises(ValueError, match="three times"):
        routing.freezing(np.arange(2), np.arange(2))


def test_failures_are_seen_and_health_is_not_called_failure(rng):
    uniform, v = np.full((4, 4), 0.25), rng.normal(size=(4, 2))
    healthy = np.eye(4) * 0.7 + 0.075
    assert not any(routing.failure_signs(healthy, v, v)[:4])
    assert routing.failure_signs(uniform, v, v).diffuse_routing
    collapsed = np.full((4, 4), 1e-4) + np.eye(4)[:1] * (1 - 4e-4)
    found = routing.failure_signs(collapsed, 200 * v, v)
    assert found.attention_collapse
    assert found.value_explosion
    assert found.dead_keys == pytest.approx(0.75)
    causal = np.tril(np.ones((4, 4)))
    causal /= causal.sum(axis=1, keepdims=True)
    assert routing.failure_signs(causal, v, v).relative_entropy == pytest.approx(1)


def test_shapes_of_clouds(rng):
    line = np.outer(rng.normal(size=50), [3.0, 4.0, 0.0])
    shape = manifold.principal_shape(line)
    assert shape.components == 1
    assert shape.participation == pytest.approx(1)
    assert manifold.alignment(shape.coordinates[:, 0], line[:, 0]) == pytest.approx(1)
    ball = rng.normal(size=(5000, 3))
    assert manifold.principal_shape(ball).components == 3
    assert manifold.principal_shape(ball).participation == pytest.approx(3, rel=0.01)
    assert manifold.principal_shape(np.ones((5, 3))).components == 0
    assert manifold.alignment(np.ones(5), np.arange(5)) == 0
    with pytest.raises(ValueError, match="share"):
        manifold.principal_shape(ball, share=1.5)
