"""The flow of `attnflow simulate two_token --p 0 --c0 6 --c1 3`, as anybody would write it."""

import numpy as np
from scipy.integrate import solve_ivp
from scipy.special import expit


def field(s, y):
    slope = expit(np.tanh(y / 2)) * 2 * expit(y) * expit(-y)
    return np.exp(s) * -2 * slope


s = np.linspace(0, np.log1p(1e4), 200)
flow = solve_ivp(field, (0, s[-1]), [6.0, 3.0], "DOP853", s, rtol=1e-10, atol=1e-12)
norm2 = np.sum(flow.y**2, axis=0)  # up to what does not move
print(f"{norm2[0]:.10g} {norm2.min():.10g} {norm2[-1]:.10g}")
